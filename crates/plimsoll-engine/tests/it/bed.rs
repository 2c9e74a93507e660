//! A test bed: an engine, a clock, and short words for what a test does with them.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_engine::rows::{
    Change, EventRow, PlanLimits, PlanRow, PoolRow, PoolSettings, Role, Rows, TemplateRow,
    TenantRow,
};
use plimsoll_engine::{
    Admin, Caller, Command, CreateSandbox, Effect, Engine, EngineConfig, Input, Output, Read,
    Refusal, Reply, Reserve, ReserveItem, ReserveMode, SandboxView, Token,
};
use plimsoll_types::{
    ClaimId, DecisionId, Driver, GuestReport, GuestStatus, HostCommand, HostId, HostOutcome,
    HostReport, Mib, MilliCpu, PlanId, PoolName, ReservationId, SandboxId, TemplateName, TenantId,
    Timestamp,
};

pub(crate) struct Bed {
    pub(crate) engine: Engine,
    pub(crate) config: EngineConfig,
    epoch: u64,
    pub(crate) now: Timestamp,
    next: u64,
    pub(crate) changes: Vec<Change>,
    /// Commands sent and not answered yet.
    pub(crate) sent: Vec<(HostId, HostCommand)>,
    pub(crate) probes: Vec<HostId>,
    sequences: BTreeMap<HostId, u64>,
    /// Replies that came without being waited for.
    pub(crate) late: Vec<(Token, Reply)>,
}

pub(crate) fn host(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

pub(crate) fn pool(name: &str) -> PoolName {
    PoolName::new(name).unwrap()
}

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

pub(crate) fn caller(name: &str) -> Caller {
    Caller { role: Role::Tenant, tenant: tenant(name) }
}

pub(crate) fn operator() -> Caller {
    Caller { role: Role::Operator, tenant: tenant("default") }
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::over(Rows::default(), 1, Timestamp(1_800_000_000_000))
    }

    pub(crate) fn over(rows: Rows, epoch: u64, now: Timestamp) -> Self {
        Self::with(EngineConfig::default(), rows, epoch, now)
    }

    pub(crate) fn with(config: EngineConfig, rows: Rows, epoch: u64, now: Timestamp) -> Self {
        let mut out = Output::default();
        let engine = Engine::restore(config.clone(), epoch, rows, now, &mut out).unwrap();
        let mut bed = Self {
            engine,
            config,
            epoch,
            now,
            next: epoch << 32,
            changes: Vec::new(),
            sent: Vec::new(),
            probes: Vec::new(),
            sequences: BTreeMap::new(),
            late: Vec::new(),
        };
        bed.take(out);
        bed.template("shell", |_| {});
        bed
    }

    /// The cell is killed and started again over what was written.
    pub(crate) fn restart(&mut self) {
        let rows = super::kept::rows(&self.changes);
        self.epoch += 1;
        let mut out = Output::default();
        let engine = Engine::restore(self.config.clone(), self.epoch, rows, self.now, &mut out);
        self.engine = engine.unwrap();
        self.sent.clear();
        self.probes.clear();
        self.late.clear();
        self.take(out);
    }

    /// What was said under this kind.
    pub(crate) fn events(&self, kind: &str) -> Vec<&EventRow> {
        let mut said = Vec::new();
        for change in &self.changes {
            if let Change::Event(row) = change
                && row.kind == kind
            {
                said.push(row);
            }
        }
        said
    }

    fn take(&mut self, out: Output) {
        self.changes.extend(out.changes);
        self.late.extend(out.replies);
        for effect in out.effects {
            match effect {
                Effect::HostCommand { host, command, .. } => self.sent.push((host, *command)),
                Effect::ProbeHost { host, .. } => self.probes.push(host),
                _ => {}
            }
        }
        let broken = self.engine.check(self.now);
        assert!(broken.is_empty(), "{broken:?}");
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn input(&mut self, input: Input) {
        let mut out = Output::default();
        self.engine.handle(self.now, input, &mut out);
        self.take(out);
    }

    /// Sends a call; its reply may come later.
    pub(crate) fn send(&mut self, caller: &Caller, command: Command) -> Token {
        let token = Token(self.number());
        self.input(Input::Call { token, caller: caller.clone(), command });
        token
    }

    pub(crate) fn reply(&mut self, token: Token) -> Option<Reply> {
        let at = self.late.iter().position(|(of, _)| *of == token)?;
        Some(self.late.remove(at).1)
    }

    pub(crate) fn call(&mut self, caller: &Caller, command: Command) -> Reply {
        let token = self.send(caller, command);
        // Hosts that are asked before a refusal do not answer here.
        for host in std::mem::take(&mut self.probes) {
            self.input(Input::ProbeFailed { host });
        }
        self.reply(token).expect("answered at once")
    }

    pub(crate) fn admin(&mut self, admin: Admin) {
        let reply = self.call(&operator(), Command::Admin(Box::new(admin)));
        assert!(matches!(reply, Reply::Done), "{reply:?}");
    }

    pub(crate) fn pass(&mut self, millis: u64) {
        let end = Timestamp(self.now.0 + i64::try_from(millis).unwrap());
        while let Some(at) = self.engine.next_wakeup().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.input(Input::Tick);
        }
        self.now = end;
        self.input(Input::Tick);
    }

    pub(crate) fn template(&mut self, name: &str, change: impl FnOnce(&mut TemplateRow)) {
        let name = TemplateName::new(name).unwrap();
        let mut row = TemplateRow::new(name, Driver::Process, Mib(512));
        change(&mut row);
        self.admin(Admin::PutTemplate(row));
    }

    pub(crate) fn pool(&mut self, name: &str, change: impl FnOnce(&mut PoolSettings)) {
        let mut settings = PoolSettings::default();
        change(&mut settings);
        self.admin(Admin::PutPool(PoolRow { name: pool(name), settings }));
    }

    pub(crate) fn tenant(&mut self, name: &str, change: impl FnOnce(&mut PlanLimits)) {
        let mut limits = PlanLimits::default();
        change(&mut limits);
        let plan = PlanId::new(&format!("plan-{name}")).unwrap();
        self.admin(Admin::PutPlan(PlanRow { id: plan.clone(), limits }));
        self.admin(Admin::PutTenant(TenantRow::new(tenant(name), plan, self.now)));
    }

    /// The next report of a host with much room and no guests.
    pub(crate) fn next_report(&mut self, name: &str) -> HostReport {
        let id = host(name);
        let sequence = self.sequences.entry(id.clone()).or_default();
        *sequence += 1;
        let sequence = *sequence;
        HostReport {
            address: Some("http://127.0.0.1:1".to_owned()),
            cpu_millis_total: MilliCpu(16_000),
            memory_mib_total: Mib(32 * 1024),
            memory_mib_used: Mib(1024),
            memory_mib_admittable: Some(8 * 1024),
            complete: true,
            ..HostReport::new(id, pool("local"), "boot-1", sequence, self.now)
        }
    }

    pub(crate) fn heartbeat(&mut self, name: &str, change: impl FnOnce(&mut HostReport)) {
        let mut report = self.next_report(name);
        change(&mut report);
        let token = Token(self.number());
        self.input(Input::Report { token, report: Box::new(report), probe: false });
        assert!(matches!(self.reply(token), Some(Reply::Heartbeat(_))));
    }

    pub(crate) fn item(&mut self, memory: u64) -> ReserveItem {
        let number = self.number();
        let (id, key) = (ReservationId(u128::from(number)), format!("key-{number}"));
        ReserveItem::new(id, Arc::from(key), 1, Mib(memory))
    }

    pub(crate) fn reserve(&mut self, item: ReserveItem, mode: ReserveMode) -> Command {
        let decision = DecisionId(u128::from(self.number()));
        Command::Reserve(Box::new(Reserve { decision, item, mode }))
    }

    pub(crate) fn create(&mut self, change: impl FnOnce(&mut CreateSandbox)) -> Command {
        let id = SandboxId(u128::from(self.number()));
        let decision = DecisionId(u128::from(self.number()));
        let template = TemplateName::new("shell").unwrap();
        let mut create = CreateSandbox::new(id, decision, template);
        change(&mut create);
        Command::Create(Box::new(create))
    }

    /// Answers the oldest command that has not been answered.
    pub(crate) fn answer(&mut self, outcome: HostOutcome) -> HostCommand {
        let (host, command) = self.sent.remove(0);
        let answered = Box::new(command.clone());
        self.input(Input::Outcome { host, command: answered, outcome });
        command
    }

    /// A sandbox that runs.
    pub(crate) fn running(&mut self, change: impl FnOnce(&mut CreateSandbox)) -> SandboxId {
        let command = self.create(change);
        let reply = self.call(&caller("default"), command);
        let view = sandbox(&reply);
        let id = view.row.id;
        self.answer(HostOutcome::Done);
        id
    }

    /// A pool with what it holds.
    pub(crate) fn pool_view(&mut self, name: &str) -> plimsoll_engine::PoolView {
        match self.call(&operator(), Command::Read(Read::Pools)) {
            Reply::Pools(views) => {
                views.into_iter().find(|view| view.row.name == pool(name)).unwrap()
            }
            other => panic!("no pools: {other:?}"),
        }
    }

    pub(crate) fn resume(&mut self, id: SandboxId) -> Reply {
        let decision = self.decision();
        self.call(&caller("default"), Command::Resume { id, decision })
    }

    pub(crate) fn status(&mut self, id: SandboxId) -> plimsoll_types::SandboxStatus {
        self.show(id).row.status
    }

    /// Guests that the host reports as running, with nothing else new.
    pub(crate) fn report_running(&mut self, ids: &[SandboxId]) {
        self.heartbeat("h1", |report| {
            report.guests = ids.iter().map(|id| guest(*id, GuestStatus::Running, 512)).collect();
        });
    }

    pub(crate) fn show(&mut self, id: SandboxId) -> SandboxView {
        sandbox(&self.call(&operator(), Command::Read(Read::Sandbox(id)))).clone()
    }

    pub(crate) fn decision(&mut self) -> DecisionId {
        DecisionId(u128::from(self.number()))
    }
}

pub(crate) fn sandbox(reply: &Reply) -> &SandboxView {
    match reply {
        Reply::Sandbox { view, .. } => view,
        other => panic!("no sandbox: {other:?}"),
    }
}

pub(crate) fn refusal(reply: &Reply) -> &Refusal {
    match reply {
        Reply::Refused(refusal) => refusal,
        other => panic!("no refusal: {other:?}"),
    }
}

pub(crate) fn guest(id: impl Into<Guest>, status: GuestStatus, charge: u64) -> GuestReport {
    let Guest(id) = id.into();
    GuestReport::new(id, status, Mib(512), Mib(charge))
}

pub(crate) struct Guest(ClaimId);

impl From<SandboxId> for Guest {
    fn from(id: SandboxId) -> Self {
        Self(ClaimId::Sandbox(id))
    }
}

impl From<ReservationId> for Guest {
    fn from(id: ReservationId) -> Self {
        Self(ClaimId::Reservation(id))
    }
}
