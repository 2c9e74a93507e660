//! The engine in memory: admit, commit and release of one reservation, over so many live records.
//!
//! `cargo bench -p plimsoll-bench --bench engine`. One iteration is three inputs; the reported
//! throughput counts iterations. DESIGN 11: at least 1 000 000 a second on one core, flat from
//! 1 000 to 1 000 000 live records.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark that cannot go on panics")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_engine::rows::{Role, Rows};
use plimsoll_engine::{
    Caller, Command, Engine, EngineConfig, Input, Output, Reserve, ReserveItem, ReserveMode, Token,
};
use plimsoll_types::{
    Counted, Criticality, DecisionId, DriverSet, HostId, HostReport, Mib, MilliCpu, PoolName,
    ReservationId, TenantId, Timestamp, Vcpus,
};

const NOW: Timestamp = Timestamp(1_800_000_000_000);
/// Hosts of the fleet; each has room for every record of the largest run.
const HOSTS: u32 = 100;

struct Bench {
    engine: Engine,
    out: Output,
    caller: Caller,
    next: u64,
    key: String,
}

impl Bench {
    fn new() -> Self {
        let mut out = Output::default();
        let config = EngineConfig { ended_max: 10_000, ..EngineConfig::default() };
        let mut engine = Engine::restore(config, 1, Rows::default(), NOW, &mut out).unwrap();
        for number in 0..HOSTS {
            let report = report(number);
            let input = Input::Report { token: Token(0), report: Box::new(report), probe: false };
            engine.handle(NOW, input, &mut out);
        }
        out.clear();
        let caller = Caller { role: Role::Tenant, tenant: TenantId::new("default").unwrap() };
        // The tenant of the benchmark has no limit that the largest run would meet.
        let plan = plimsoll_engine::rows::PlanRow {
            id: plimsoll_types::PlanId::new("default").unwrap(),
            limits: plimsoll_engine::rows::PlanLimits::default(),
        };
        let command = Command::Admin(Box::new(plimsoll_engine::Admin::PutPlan(plan)));
        let operator = Caller { role: Role::Operator, tenant: caller.tenant.clone() };
        engine.handle(NOW, Input::Call { token: Token(0), caller: operator, command }, &mut out);
        out.clear();
        Self { engine, out, caller, next: 0, key: String::new() }
    }

    fn call(&mut self, command: Command) {
        let input = Input::Call { token: Token(1), caller: self.caller.clone(), command };
        self.engine.handle(NOW, input, &mut self.out);
    }

    fn reserve(&mut self) -> ReservationId {
        use std::fmt::Write;
        self.next += 1;
        let number = u128::from(self.next);
        let id = ReservationId(number);
        self.key.clear();
        write!(self.key, "key-{number}").unwrap();
        let item = ReserveItem {
            id,
            key: Arc::from(self.key.as_str()),
            body_hash: 1,
            memory_mib: Mib(4),
            vcpus: Vcpus(1),
            stateful: false,
            pool: None,
            priority: 0,
            criticality: Criticality::Standard,
            ttl_seconds: None,
        };
        let decision = DecisionId(number);
        self.call(Command::Reserve(Box::new(Reserve {
            decision,
            item,
            mode: ReserveMode::Reject,
        })));
        id
    }

    fn cycle(&mut self) {
        let id = self.reserve();
        self.call(Command::Commit { id, cgroup: None });
        self.call(Command::Release { id });
        assert_eq!(self.out.replies.len(), 3);
        black_box(&self.out);
        self.out.clear();
    }
}

fn report(number: u32) -> HostReport {
    HostReport {
        host: HostId::new(&format!("host-{number}")).unwrap(),
        boot_id: "boot".to_owned(),
        incarnation: None,
        sequence: 1,
        seen_through: None,
        heartbeat_at: NOW,
        uptime_millis: None,
        pool: PoolName::new("local").unwrap(),
        region: String::new(),
        address: None,
        labels: BTreeMap::new(),
        drivers: DriverSet::ALL,
        cpu_millis_total: MilliCpu(64_000),
        cpu_millis_used: MilliCpu(u64::from(number) * 100),
        memory_mib_total: Mib(1 << 22),
        memory_mib_used: Mib(u64::from(number) * 1024),
        memory_admission: None,
        memory_mib_admittable: Some(1 << 22),
        not_admitting: None,
        starts_in_flight: 0,
        starts_limit: None,
        counted: Counted::new(),
        stream_restore: false,
        pressure_bp: None,
        reservations: Vec::new(),
        guests: Vec::new(),
        foreign_guests: Vec::new(),
        ended: Vec::new(),
        complete: false,
    }
}

fn engine(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("admit_commit_release");
    group.throughput(Throughput::Elements(1));
    for live in [1_000_u64, 100_000, 1_000_000] {
        let mut bench = Bench::new();
        for _ in 0..live {
            bench.reserve();
            bench.out.clear();
        }
        for _ in 0..20_000 {
            bench.cycle();
        }
        group.bench_function(BenchmarkId::from_parameter(live), |timer| {
            timer.iter(|| bench.cycle());
        });
    }
    group.finish();
}

criterion_group!(benches, engine);
criterion_main!(benches);
