//! Quota: concurrency, rates, metering, the ladder, abuse (DESIGN 4.7).

mod abuse;
mod caps;
mod deletion;
mod ended;
mod isolation;
mod ladder;
mod meter;
mod periods;
mod plans;
mod rates;

use plimsoll_engine::rows::{EndpointRow, PlanLimits, PlanRow, TenantRow};
use plimsoll_engine::{
    Admin, Command, CreateSandbox, ForkSandbox, Input, QuotaView, Read, Reply, ReserveBatch,
    SandboxFilter,
};
use plimsoll_types::{
    Driver, EndpointId, EventId, GuestReport, GuestStatus, HostOutcome, Mib, Millis, OnFull,
    PlanId, RefusalCode, SandboxId, SandboxStatus, Timestamp,
};

use super::bed::{Bed, caller, guest, operator, refusal, sandbox, tenant};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// What a call was answered with: `None` is a yes.
fn code(reply: &Reply) -> Option<RefusalCode> {
    match reply {
        Reply::Refused(refusal) => Some(refusal.code),
        _ => None,
    }
}

impl Bed {
    fn quota(&mut self, name: &str) -> QuotaView {
        match self.call(&operator(), Command::Read(Read::Quota(tenant(name)))) {
            Reply::Quota(view) => *view,
            other => panic!("no quota: {other:?}"),
        }
    }

    /// In use: sandboxes, vCPUs, memory.
    fn in_use(&mut self, name: &str) -> [u64; 3] {
        self.quota(name).concurrency.map(|(_, view)| view.used)
    }

    /// Whole CPU-seconds, GiB-hours and bytes of the period.
    fn consumed(&mut self, name: &str) -> [u64; 3] {
        self.quota(name).consumption.map(|(_, view)| view.used)
    }

    fn create_of(&mut self, name: &str, change: impl FnOnce(&mut CreateSandbox)) -> Reply {
        let command = self.create(change);
        self.call(&caller(name), command)
    }

    /// A sandbox of this tenant that runs.
    fn run_of(&mut self, name: &str, change: impl FnOnce(&mut CreateSandbox)) -> SandboxId {
        let reply = self.create_of(name, change);
        let id = sandbox(&reply).row.id;
        self.answer(HostOutcome::Done);
        id
    }

    /// The guests of its template can be forked.
    fn forkable(&mut self) {
        self.template("shell", |template| template.driver = Driver::Gvisor);
    }

    fn fork_of(&mut self, name: &str, from: SandboxId) -> Reply {
        let number = self.number();
        let decision = self.decision();
        let fork = ForkSandbox {
            from,
            id: SandboxId(u128::from(number)),
            decision,
            key: None,
            labels: None,
            priority: None,
            on_full: OnFull::Reject,
            answered: false,
        };
        self.call(&caller(name), Command::Fork(Box::new(fork)))
    }

    fn batch_of(&mut self, name: &str, items: usize, memory: u64) -> Reply {
        let items = (0..items).map(|_| self.item(memory)).collect();
        let decision = self.decision();
        let batch = ReserveBatch { decision, items };
        self.call(&caller(name), Command::ReserveBatch(Box::new(batch)))
    }

    fn resume_of(&mut self, name: &str, id: SandboxId) -> Reply {
        let decision = self.decision();
        self.call(&caller(name), Command::Resume { id, decision })
    }

    fn tenant_row(&mut self, name: &str) -> TenantRow {
        match self.call(&operator(), Command::Read(Read::Tenant(tenant(name)))) {
            Reply::Tenants(mut rows) => rows.remove(0),
            other => panic!("no tenant: {other:?}"),
        }
    }

    fn change_tenant(&mut self, name: &str, change: impl FnOnce(&mut TenantRow)) {
        let mut row = self.tenant_row(name);
        change(&mut row);
        self.admin(Admin::PutTenant(row));
    }

    /// Changes the plan that [`Bed::tenant`] has made for this tenant alone.
    fn change_plan(&mut self, name: &str, change: impl FnOnce(&mut PlanLimits)) {
        let id = PlanId::new(&format!("plan-{name}")).unwrap();
        let Reply::Plans(plans) = self.call(&operator(), Command::Read(Read::Plans)) else {
            panic!("no plans")
        };
        let mut limits = plans.iter().find(|plan| plan.id == id).unwrap().limits;
        change(&mut limits);
        self.admin(Admin::PutPlan(PlanRow { id, limits }));
    }

    fn endpoint(&mut self, name: &str, change: impl FnOnce(&mut EndpointRow)) -> EndpointId {
        let id = EndpointId(u128::from(self.number()));
        let mut row = EndpointRow {
            id,
            tenant: Some(tenant(name)),
            url: "https://hooks.example.com/plimsoll".to_owned(),
            events: Vec::new(),
            description: String::new(),
            secrets: Vec::new(),
            disabled: None,
            created_at: self.now,
            cursor: EventId(0),
            failing_since: None,
        };
        change(&mut row);
        self.admin(Admin::PutEndpoint(row));
        id
    }

    /// The last event of this kind was delivered everywhere, or given up on.
    fn came_out(&mut self, kind: &str, delivered: bool) {
        for row in self.endpoints() {
            self.came_out_at(row.id, kind, delivered);
        }
    }

    fn endpoints(&mut self) -> Vec<EndpointRow> {
        match self.call(&operator(), Command::Read(Read::Endpoints(None))) {
            Reply::Endpoints(rows) => rows,
            other => panic!("no endpoints: {other:?}"),
        }
    }

    /// The same of one endpoint.
    fn came_out_at(&mut self, endpoint: EndpointId, kind: &str, delivered: bool) {
        let event = self.events(kind).last().expect("was said").id;
        self.input(Input::Delivered { event, endpoint, delivered });
    }

    /// A heartbeat of host `h1` that lists these guests.
    fn report(&mut self, guests: Vec<GuestReport>) {
        self.heartbeat("h1", |report| {
            report.memory_mib_admittable = Some(30 * 1024);
            report.guests = guests;
        });
    }

    /// What the one host would list: everything that runs or was paused in place.
    fn fleet(&mut self) -> Vec<GuestReport> {
        let filter = SandboxFilter { limit: 10_000, ..SandboxFilter::default() };
        let read = Command::Read(Read::Sandboxes(filter));
        let Reply::Sandboxes { items, .. } = self.call(&operator(), read) else { panic!() };
        items
            .iter()
            .filter_map(|view| {
                let status = match view.row.status {
                    SandboxStatus::Running => GuestStatus::Running,
                    SandboxStatus::Paused => GuestStatus::Paused,
                    _ => return None,
                };
                let charge = if view.row.slot_released { 0 } else { 64 };
                let attempt = view.row.attempt;
                Some(GuestReport { attempt, ..guest(view.row.id, status, charge) })
            })
            .collect()
    }

    /// Lets time pass, during which the host is heard of.
    fn later(&mut self, millis: u64) {
        let end = self.now + Millis(millis);
        loop {
            self.pass(end.since(self.now).0.min(10_000));
            let guests = self.fleet();
            self.report(guests);
            if self.now >= end {
                return;
            }
        }
    }

    /// Lets time pass with a heartbeat every ten seconds.
    fn beat(&mut self, millis: u64, mut guests: impl FnMut(Timestamp) -> Vec<GuestReport>) {
        let end = self.now + Millis(millis);
        while self.now < end {
            self.pass(end.since(self.now).0.min(10_000));
            let guests = guests(self.now);
            self.report(guests);
        }
    }
}

/// A guest of this charge that has used so much CPU.
fn used(id: SandboxId, charge: u64, cpu_millis: u64) -> GuestReport {
    GuestReport { cpu_millis_total_used: cpu_millis, ..guest(id, GuestStatus::Running, charge) }
}

/// The same at rest.
fn at_rest(id: SandboxId, charge: u64, cpu_millis: u64) -> GuestReport {
    GuestReport { status: GuestStatus::Paused, ..used(id, charge, cpu_millis) }
}

fn gib(gib: u64) -> Option<Mib> {
    Some(Mib(gib * 1024))
}
