//! What a tenant's limits cost a decision, and what tenants cost by being there.
//!
//! `cargo bench -p plimsoll-bench --bench quota`. DESIGN 11: rate and quota check inside a
//! decision at most 200 ns; a decision costs no more among 100 000 tenants than among 100; a tenant
//! that does nothing takes less than 1 KiB.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark that cannot go on panics")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_engine::rows::{
    ConcurrencyLimits, ConsumptionLimits, Limit, PlanLimits, PlanRow, RateLimits, Role, Rows,
    TemplateRow, TenantRow,
};
use plimsoll_engine::{
    Admin, Caller, Command, CreateSandbox, Effect, Engine, EngineConfig, Input, Output, Reserve,
    ReserveItem, ReserveMode, Token,
};
use plimsoll_policy::consumption::Amounts;
use plimsoll_policy::quota::{Bursts, Usage, check_all};
use plimsoll_policy::rate::{Buckets, Operation};
use plimsoll_types::{
    ClaimId, Counted, Criticality, DecisionId, Driver, DriverSet, GuestReport, GuestStatus, HostId,
    HostOutcome, HostReport, Lifecycle, Mib, MilliCpu, Millis, OnFull, PlanId, PoolName,
    ReservationId, SandboxId, TemplateName, TenantId, Timestamp, Vcpus,
};

const NOW: Timestamp = Timestamp(1_800_000_000_000);

/// Every limit that there is, each out of reach.
fn all_limits() -> PlanLimits {
    let far = Some(1_000_000_000);
    let burst = Limit { limit: far, burst_limit: Some(3_000_000_000) };
    PlanLimits {
        concurrency: ConcurrencyLimits { sandboxes: burst, vcpus: burst, memory_mib: burst },
        consumption: ConsumptionLimits { cpu_seconds: far, gib_hours: far, egress_bytes: far },
        rate: RateLimits {
            creates_per_minute: far,
            creates_per_hour: far,
            forks_per_minute: far,
            forks_per_hour: far,
            resumes_per_minute: far,
            resumes_per_hour: far,
        },
    }
}

/// The arithmetic of one decision under every limit: rate, budget, quota, and the tokens taken.
fn check(criterion: &mut Criterion) {
    memory();
    let mut group = criterion.benchmark_group("limits");
    let limits = all_limits();
    let (mut buckets, mut bursts) = (Buckets::default(), Bursts::default());
    let used = Usage { sandboxes: 100, vcpus: 200, memory_mib: 51_200 };
    let incoming = Usage { sandboxes: 1, vcpus: 1, memory_mib: 512 };
    let spent = Amounts { cpu_millis: 1, charged_mib_millis: 1, ..Amounts::default() };
    for (name, operation) in [("create", Operation::Create), ("fork", Operation::Fork)] {
        let mut now = NOW;
        group.bench_function(BenchmarkId::new("check_and_take", name), |bencher| {
            bencher.iter(|| {
                now = now + Millis(1);
                let limits = black_box(&limits);
                assert!(buckets.would_take(operation, 1, &limits.rate, now).is_ok());
                assert!(!limits.consumption.is_exhausted(black_box(&spent)));
                bursts.advance(black_box(&used), &limits.concurrency, now);
                assert!(check_all(&used, &incoming, &limits.concurrency, &bursts).is_ok());
                buckets.take(operation, 1, &limits.rate, now)
            });
        });
    }
    group.finish();
}

struct Bench {
    engine: Engine,
    out: Output,
    now: Timestamp,
    next: u64,
}

impl Bench {
    fn new() -> Self {
        let mut out = Output::default();
        let config = EngineConfig { ended_max: 10_000, ..EngineConfig::default() };
        let engine = Engine::restore(config, 1, Rows::default(), NOW, &mut out).unwrap();
        out.clear();
        let mut bench = Self { engine, out, now: NOW, next: 0 };
        bench.report(Vec::new());
        bench
    }

    fn input(&mut self, input: Input) {
        self.engine.handle(self.now, input, &mut self.out);
    }

    fn admin(&mut self, admin: Admin) {
        let caller = Caller { role: Role::Operator, tenant: name(0) };
        let command = Command::Admin(Box::new(admin));
        self.input(Input::Call { token: Token(0), caller, command });
        self.out.clear();
    }

    /// Tenants of one plan, each with these limits of its own on top.
    fn tenants(&mut self, count: u64, limits: PlanLimits, overrides: PlanLimits) {
        let id = PlanId::new("plan").unwrap();
        self.admin(Admin::PutPlan(PlanRow { id: id.clone(), limits }));
        for number in 0..count {
            self.admin(Admin::PutTenant(TenantRow {
                id: name(number),
                plan: id.clone(),
                payment_method: false,
                payment_method_ever: false,
                created_at: NOW,
                overrides,
                suspended: None,
                anchor_day: None,
            }));
        }
    }

    fn reserve(&mut self, tenant: &Caller) -> ReservationId {
        self.next += 1;
        let number = u128::from(self.next);
        let item = ReserveItem {
            id: ReservationId(number),
            key: Arc::from(format!("key-{number}")),
            body_hash: 1,
            memory_mib: Mib(4),
            vcpus: Vcpus(1),
            stateful: false,
            pool: None,
            priority: 0,
            criticality: Criticality::Standard,
            ttl_seconds: None,
        };
        let id = item.id;
        let reserve = Reserve { decision: DecisionId(number), item, mode: ReserveMode::Reject };
        let command = Command::Reserve(Box::new(reserve));
        self.input(Input::Call { token: Token(1), caller: tenant.clone(), command });
        id
    }

    fn create(&mut self, number: u64, template: &TemplateName) -> CreateSandbox {
        let id = u128::from(number) + 1;
        CreateSandbox {
            id: SandboxId(id),
            decision: DecisionId(id),
            key: Some((Arc::from(format!("create-{number}")), number)),
            template: template.clone(),
            memory_mib: None,
            vcpus: None,
            stateful: None,
            command: ["sh", "-c", "sleep 600"].map(str::to_owned).to_vec(),
            env: BTreeMap::new(),
            labels: BTreeMap::from([("job".to_owned(), format!("ci-{number}"))]),
            pool: None,
            priority: 0,
            preemptible: true,
            criticality: Criticality::Standard,
            on_full: OnFull::Reject,
            lifecycle: Lifecycle::default(),
            answered: false,
        }
    }

    /// One decision, and its undoing: committed first, as work that is done is.
    fn cycle(&mut self, tenant: &Caller) {
        let id = self.reserve(tenant);
        for command in [Command::Commit { id, cgroup: None }, Command::Release { id }] {
            self.input(Input::Call { token: Token(1), caller: tenant.clone(), command });
        }
        assert_eq!(self.out.replies.len(), 3);
        black_box(&self.out);
        self.out.clear();
    }

    fn report(&mut self, guests: Vec<GuestReport>) {
        self.next += 1;
        let report = HostReport {
            host: HostId::new("host").unwrap(),
            boot_id: "boot".to_owned(),
            incarnation: None,
            sequence: self.next,
            seen_through: None,
            heartbeat_at: self.now,
            uptime_millis: None,
            pool: PoolName::new("local").unwrap(),
            region: String::new(),
            address: None,
            labels: BTreeMap::new(),
            drivers: DriverSet::ALL,
            cpu_millis_total: MilliCpu(1 << 40),
            cpu_millis_used: MilliCpu(0),
            memory_mib_total: Mib(1 << 30),
            memory_mib_used: Mib(0),
            memory_admission: None,
            memory_mib_admittable: Some(1 << 30),
            not_admitting: None,
            starts_in_flight: 0,
            starts_limit: None,
            counted: Counted::new(),
            stream_restore: false,
            pressure_bp: None,
            reservations: Vec::new(),
            guests,
            foreign_guests: Vec::new(),
            ended: Vec::new(),
            complete: false,
        };
        self.input(Input::Report { token: Token(0), report: Box::new(report), probe: false });
        self.out.clear();
    }
}

fn name(number: u64) -> TenantId {
    TenantId::new(&format!("tenant-{number}")).unwrap()
}

/// What this process holds in memory, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Names the one thing whose memory this process is to measure, and nothing else.
const MEASURE: &str = "PLIMSOLL_BENCH_MEMORY";

/// What one of each takes in memory. Each is measured in a process of its own: freed memory that
/// is used again would not show.
fn memory() {
    const WHAT: [&str; 5] = [
        "idle tenant, no limits",
        "idle tenant, every limit by its plan",
        "idle tenant, every limit of its own",
        "sandbox that runs, as its template has it",
        "sandbox that runs, with command, key and a label",
    ];
    let none = PlanLimits::default();
    match std::env::var(MEASURE) {
        Ok(what) => {
            let each = match WHAT.iter().position(|one| *one == what) {
                Some(0) => idle(none, none),
                Some(1) => idle(all_limits(), none),
                Some(2) => idle(none, all_limits()),
                Some(3) => living(false),
                Some(4) => living(true),
                _ => panic!("{MEASURE}: nothing is called {what}"),
            };
            eprintln!("{each} bytes for each {what}");
            std::process::exit(0);
        }
        Err(_) => {
            let own = std::env::current_exe().unwrap();
            for what in WHAT {
                let child = std::process::Command::new(&own).env(MEASURE, what).status().unwrap();
                assert!(child.success(), "{what}");
            }
        }
    }
}

fn idle(limits: PlanLimits, own: PlanLimits) -> u64 {
    const COUNT: u64 = 100_000;
    let mut bench = Bench::new();
    let before = resident();
    bench.tenants(COUNT, limits, own);
    let each = resident().saturating_sub(before) / COUNT;
    black_box(&bench.engine);
    each
}

/// What a sandbox that runs takes: as its template has it, and with a command, an idempotency key
/// and a label of its own.
fn living(own: bool) -> u64 {
    const COUNT: u64 = 100_000;
    let mut bench = Bench::new();
    bench.tenants(100, all_limits(), PlanLimits::default());
    let shell = TemplateName::new("shell").unwrap();
    bench.admin(Admin::PutTemplate(TemplateRow {
        name: shell.clone(),
        driver: Driver::Process,
        memory_mib: Mib(4),
        overhead_mib: Mib(0),
        vcpus: Vcpus(1),
        stateful: false,
        rootfs: None,
        command: Vec::new(),
        env: BTreeMap::new(),
        host_labels: BTreeMap::new(),
        counted: Counted::new(),
        baked: false,
        pool: None,
    }));
    let before = resident();
    for number in 0..COUNT {
        let mut create = bench.create(number, &shell);
        if !own {
            create.key = None;
            create.command.clear();
            create.labels.clear();
        }
        let caller = Caller { role: Role::Tenant, tenant: name(number % 100) };
        let command = Command::Create(Box::new(create));
        bench.input(Input::Call { token: Token(1), caller, command });
        for effect in std::mem::take(&mut bench.out.effects) {
            if let Effect::HostCommand { host, command, .. } = effect {
                let outcome = HostOutcome::Done;
                bench.engine.handle(
                    bench.now,
                    Input::Outcome { host, command, outcome },
                    &mut bench.out,
                );
            }
        }
        bench.out.clear();
    }
    let each = resident().saturating_sub(before) / COUNT;
    black_box(&bench.engine);
    each
}

/// A decision among 100 tenants and among 100 000: for one that asks again and again, and for
/// another one each time. What differs between the latter two is that the caller's own record is
/// not in a cache near the core; the callers' names, which come with each call from outside, are
/// made anew in both, so that neither is measured with more of them in a cache than the other.
fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reserve_commit_release");
    group.throughput(Throughput::Elements(1));
    for (limits, what) in [(PlanLimits::default(), "unlimited"), (all_limits(), "limited")] {
        for count in [100_u64, 100_000] {
            let mut bench = Bench::new();
            bench.tenants(count, limits, PlanLimits::default());
            for (turns, stride) in [("hot", 0), ("random", 61_803)] {
                let mut turn = 0;
                let id = BenchmarkId::new(format!("{what}_{turns}_tenant"), count);
                group.bench_function(id, |bencher| {
                    bencher.iter_batched(
                        || {
                            // A stride that visits all of them in no order of memory.
                            turn = (turn + stride) % count;
                            Caller { role: Role::Tenant, tenant: name(turn) }
                        },
                        |caller| bench.cycle(&caller),
                        BatchSize::SmallInput,
                    );
                });
            }
        }
    }
    group.finish();
}

/// A heartbeat with so many guests that have all used something: metering included, by guest.
fn metering(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("heartbeat");
    for guests in [100_u64, 1_000] {
        let mut bench = Bench::new();
        bench.tenants(100, all_limits(), PlanLimits::default());
        let ids: Vec<ReservationId> = (0..guests)
            .map(|number| {
                let caller = Caller { role: Role::Tenant, tenant: name(number % 100) };
                let id = bench.reserve(&caller);
                let command = Command::Commit { id, cgroup: None };
                bench.input(Input::Call { token: Token(1), caller, command });
                id
            })
            .collect();
        let mut used = 0;
        group.throughput(Throughput::Elements(guests));
        group.bench_function(BenchmarkId::new("guests", guests), |bencher| {
            bencher.iter(|| {
                bench.now = bench.now + Millis(10_000);
                used += 1_000;
                let listed = ids
                    .iter()
                    .map(|id| GuestReport {
                        id: ClaimId::Reservation(*id),
                        attempt: 1,
                        status: GuestStatus::Running,
                        memory_mib: Mib(4),
                        resident_mib: Some(Mib(4)),
                        charge_mib: Mib(4),
                        measured: true,
                        cpu_millis_total_used: used,
                        egress_bytes_total: used,
                        last_active_at: None,
                        exit_code: None,
                        reason: None,
                    })
                    .collect();
                bench.report(listed);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, check, decisions, metering);
criterion_main!(benches);
