//! An engine in memory, on hosts with room for everything that a benchmark asks for.
#![allow(dead_code, reason = "each benchmark uses its part")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;

use plimsoll_engine::rows::{
    ConcurrencyLimits, ConsumptionLimits, Limit, PlanLimits, PlanRow, RateLimits, Role, Rows,
    TenantRow,
};
use plimsoll_engine::{
    Admin, Caller, Command, Engine, EngineConfig, Input, Output, Reserve, ReserveItem, ReserveMode,
    Token,
};
use plimsoll_types::{
    DecisionId, GuestReport, HostId, HostReport, Mib, MilliCpu, PlanId, PoolName, ReservationId,
    TenantId, Timestamp,
};

/// What the binary allocates with.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub const NOW: Timestamp = Timestamp(1_800_000_000_000);

/// Every limit that there is, each out of reach.
pub fn all_limits() -> PlanLimits {
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

pub struct Bed {
    pub engine: Engine,
    pub out: Output,
    pub now: Timestamp,
    next: u64,
    key: String,
}

impl Bed {
    /// An engine with so many hosts, and the plan `default` without limits.
    pub fn new(hosts: u32) -> Self {
        let mut out = Output::default();
        let config = EngineConfig { ended_max: 10_000, ..EngineConfig::default() };
        let engine = Engine::restore(config, 1, Rows::default(), NOW, &mut out).unwrap();
        let mut bed = Self { engine, out, now: NOW, next: 0, key: String::new() };
        for number in 0..hosts {
            bed.report(number, Vec::new());
        }
        bed.plan("default", PlanLimits::default());
        bed
    }

    pub fn input(&mut self, input: Input) {
        self.engine.handle(self.now, input, &mut self.out);
    }

    pub fn call(&mut self, caller: &Caller, command: Command) {
        self.input(Input::Call { token: Token(1), caller: caller.clone(), command });
    }

    pub fn admin(&mut self, admin: Admin) {
        let caller = Caller { role: Role::Operator, ..caller("default") };
        self.call(&caller, Command::Admin(Box::new(admin)));
        self.out.clear();
    }

    pub fn plan(&mut self, name: &str, limits: PlanLimits) -> PlanId {
        let id = PlanId::new(name).unwrap();
        self.admin(Admin::PutPlan(PlanRow { id: id.clone(), limits }));
        id
    }

    /// So many tenants of one plan, each with these limits of its own on top.
    pub fn tenants(&mut self, count: u64, limits: PlanLimits, overrides: PlanLimits) {
        let plan = self.plan("plan", limits);
        for number in 0..count {
            let row = TenantRow::new(tenant(number).tenant, plan.clone(), NOW);
            self.admin(Admin::PutTenant(TenantRow { overrides, ..row }));
        }
    }

    pub fn reserve(&mut self, caller: &Caller) -> ReservationId {
        self.next += 1;
        let number = u128::from(self.next);
        self.key.clear();
        write!(self.key, "key-{number}").unwrap();
        let key = Arc::from(self.key.as_str());
        let item = ReserveItem::new(ReservationId(number), key, 1, Mib(4));
        let id = item.id;
        let reserve = Reserve { decision: DecisionId(number), item, mode: ReserveMode::Reject };
        self.call(caller, Command::Reserve(Box::new(reserve)));
        id
    }

    /// One decision, and its undoing: committed first, as work that is done is.
    pub fn cycle(&mut self, caller: &Caller) {
        let id = self.reserve(caller);
        self.call(caller, Command::Commit { id, cgroup: None });
        self.call(caller, Command::Release { id });
        assert_eq!(self.out.replies.len(), 3);
        black_box(&self.out);
        self.out.clear();
    }

    /// A report of one host, which has these guests.
    pub fn report(&mut self, number: u32, guests: Vec<GuestReport>) {
        self.next += 1;
        let host = HostId::new(&format!("host-{number}")).unwrap();
        let pool = PoolName::new("local").unwrap();
        let report = HostReport {
            cpu_millis_total: MilliCpu(1 << 40),
            cpu_millis_used: MilliCpu(u64::from(number) * 100),
            memory_mib_total: Mib(1 << 30),
            memory_mib_used: Mib(u64::from(number) * 1024),
            memory_mib_admittable: Some(1 << 30),
            guests,
            ..HostReport::new(host, pool, "boot", self.next, self.now)
        };
        self.input(Input::Report { token: Token(0), report: Box::new(report), probe: false });
        self.out.clear();
    }
}

fn caller(name: &str) -> Caller {
    Caller { role: Role::Tenant, tenant: TenantId::new(name).unwrap() }
}

/// The tenant that every cell has.
pub fn default_tenant() -> Caller {
    caller("default")
}

/// One of [`Bed::tenants`].
pub fn tenant(number: u64) -> Caller {
    caller(&format!("tenant-{number}"))
}
