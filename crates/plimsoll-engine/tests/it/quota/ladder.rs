//! The ladder in virtual time: each step once, and recovery by one act from everywhere.

use plimsoll_engine::rows::{PausedBy, Rows};
use plimsoll_engine::{Command, EngineConfig, Explain, Reply, ReserveMode};
use plimsoll_types::{
    GuestReport, GuestStatus, HostOutcome, Lifecycle, Millis, OnFull, RefusalCode, SandboxId,
    SandboxStatus, Timestamp,
};

use super::{Bed, DAY, HOUR, MINUTE, caller, code, refusal, sandbox, used};

/// Budget of the tenant under test in CPU-seconds.
pub(super) const LIMIT: u64 = 10_000;

/// 15 January 2027, 08:00 UTC, and the end of that month.
pub(super) const START: Timestamp = Timestamp(1_800_000_000_000);
const END: Timestamp = Timestamp(1_801_440_000_000);

/// A tenant with one sandbox that does nothing and one that is always busy.
pub(super) struct Walk {
    pub(super) bed: Bed,
    pub(super) idle: SandboxId,
    busy: SandboxId,
    /// What the busy one has used.
    cpu: u64,
    /// What the idle one had used before it went idle.
    spent: u64,
    /// Whatever else there is, and does nothing.
    pub(super) others: Vec<SandboxId>,
}

impl Walk {
    pub(super) fn new() -> Self {
        Self::at(START, |_| {})
    }

    pub(super) fn at(now: Timestamp, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let mut config = EngineConfig::default();
        change(&mut config);
        let mut bed = Bed::with(config, Rows::default(), 1, now);
        bed.forkable();
        // Days pass in these tests: a report each twenty minutes is fresh.
        bed.pool("local", |settings| {
            settings.stale_seconds = 1_800;
            settings.dead_seconds = 7_200;
        });
        bed.report(Vec::new());
        bed.tenant("acme", |limits| limits.consumption.cpu_seconds = Some(LIMIT));
        let idle = bed.run_of("acme", |_| {});
        let busy = bed.run_of("acme", |_| {});
        let mut walk = Self { bed, idle, busy, cpu: 0, spent: 0, others: Vec::new() };
        walk.wait(MINUTE);
        walk
    }

    fn report(&mut self) {
        let mut guests = Vec::new();
        let mut all = vec![(self.idle, self.spent), (self.busy, self.cpu)];
        all.extend(self.others.iter().map(|id| (*id, 0)));
        for (id, cpu) in all {
            let status = match self.status(id) {
                SandboxStatus::Running | SandboxStatus::Pausing => GuestStatus::Running,
                SandboxStatus::Paused | SandboxStatus::Resuming => GuestStatus::Paused,
                _ => continue,
            };
            guests.push(GuestReport { status, ..used(id, 64, cpu) });
        }
        self.bed.heartbeat("h1", |report| {
            // A large machine, on which a day's budget can be used up in a moment.
            report.cpu_millis_total = plimsoll_types::MilliCpu(1_000_000);
            report.memory_mib_admittable = Some(30 * 1024);
            report.guests = guests;
        });
    }

    /// A report, and an answer to whatever the host was told.
    pub(super) fn settle(&mut self) {
        self.report();
        while !self.bed.sent.is_empty() {
            self.bed.answer(HostOutcome::Done);
        }
    }

    /// Minutes pass with a report each, and the host answers nothing.
    fn minutes(&mut self, minutes: u64) {
        for _ in 0..minutes {
            self.bed.pass(MINUTE);
            self.report();
        }
    }

    /// Time passes, the busy one keeps a fifteenth of a core busy.
    pub(super) fn wait(&mut self, millis: u64) {
        let (start, end) = (self.bed.now, self.bed.now + Millis(millis));
        while self.bed.now < end {
            let most = if self.bed.now.since(start) < Millis(HOUR) { 2 } else { 20 };
            let step = end.since(self.bed.now).0.min(most * MINUTE);
            self.bed.pass(step);
            // Work that is under way goes on, on top of the budget; the idle one has used it up.
            if self.status(self.busy) == SandboxStatus::Running {
                self.cpu += step / 15;
            }
            self.settle();
        }
    }

    /// The tenant has used so many thousandths of its budget, all in one.
    pub(super) fn spend(&mut self, thousandths: u64) {
        self.spent = (LIMIT * thousandths).saturating_sub(self.cpu).max(self.spent);
        self.settle();
    }

    pub(super) fn state(&mut self) -> &'static str {
        self.bed.quota("acme").state
    }

    fn said(&self) -> Vec<(&str, usize)> {
        let kinds = [
            "quota.warning",
            "quota.exhausted",
            "quota.suspended",
            "quota.deletion_scheduled",
            "quota.deleted",
            "quota.resumed",
            "quota.overage",
            "quota.unnotified",
        ];
        let count = |kind| (kind, self.bed.events(kind).len());
        kinds.into_iter().map(count).filter(|(_, count)| *count > 0).collect()
    }

    /// Where a sandbox stands; one that is forgotten ended a day ago.
    pub(super) fn status(&mut self, id: SandboxId) -> SandboxStatus {
        let read = Command::Read(plimsoll_engine::Read::Sandbox(id));
        match self.bed.call(&super::operator(), read) {
            Reply::Sandbox { view, .. } => view.row.status,
            _ => SandboxStatus::Terminated,
        }
    }

    /// Climbs to a rung: 1 warned, 2 exhausted, 3 hibernated, 4 deleting.
    pub(super) fn climb(&mut self, rung: u32) {
        if self.bed.events("quota.warning").is_empty() {
            self.bed.endpoint("acme", |_| {});
        }
        if rung >= 1 {
            self.spend(801);
            assert_eq!(self.state(), "warned");
        }
        if rung >= 2 {
            self.spend(1_001);
            assert_eq!(self.state(), "exhausted");
        }
        if rung >= 3 {
            self.wait(14 * MINUTE);
            assert_eq!(self.state(), "hibernated");
            self.bed.came_out("quota.suspended", true);
        }
        if rung >= 4 {
            self.wait(DAY + MINUTE);
            assert_eq!(self.state(), "deleting");
            self.bed.came_out("quota.deletion_scheduled", true);
        }
    }

    pub(super) fn pay(&mut self) {
        self.bed.change_tenant("acme", |row| row.payment_method = true);
    }

    pub(super) fn upgrade(&mut self) {
        self.bed.change_plan("acme", |limits| limits.consumption.cpu_seconds = Some(100 * LIMIT));
    }
}

#[test]
fn the_whole_ladder_each_step_once() {
    let mut walk = Walk::new();
    walk.bed.endpoint("acme", |_| {});
    walk.spend(799);
    assert_eq!((walk.state(), walk.said()), ("ok", vec![]));
    walk.spend(800);
    assert_eq!(walk.state(), "warned");
    let warning = walk.bed.events("quota.warning")[0].clone();
    assert_eq!(warning.tenant, Some(super::tenant("acme")));
    assert_eq!(warning.data["consumption"]["cpu_seconds"]["used"], 8_000);
    assert_eq!(warning.data["consumption"]["cpu_seconds"]["used_bp"], 8_000);
    assert_eq!(warning.data["top_consumers"][0]["id"], walk.idle.to_string());
    assert_eq!(warning.data["resets_at"], "2027-02-01T00:00:00Z");
    walk.wait(HOUR);
    assert_eq!(walk.said(), [("quota.warning", 1)]);

    walk.spend(1_000);
    assert_eq!(walk.state(), "exhausted");
    assert_eq!(walk.said(), [("quota.warning", 1), ("quota.exhausted", 1)]);
    assert_eq!(walk.status(walk.busy), SandboxStatus::Running);
    assert_eq!(walk.status(walk.idle), SandboxStatus::Running);

    walk.wait(14 * MINUTE);
    assert_eq!(walk.state(), "hibernated");
    assert_eq!(walk.status(walk.idle), SandboxStatus::Paused);
    assert_eq!(walk.bed.show(walk.idle).row.paused_by, Some(PausedBy::Quota));
    assert_eq!(walk.status(walk.busy), SandboxStatus::Running, "it is in the middle of something");

    // No notice has come out: nothing is announced.
    walk.wait(2 * DAY);
    assert_eq!(walk.state(), "hibernated");
    walk.bed.came_out("quota.suspended", true);
    walk.wait(20 * MINUTE);
    assert_eq!(walk.state(), "deleting");
    let announced = walk.bed.events("quota.deletion_scheduled")[0].clone();
    assert_eq!(announced.data["sandboxes"], serde_json::json!([walk.idle]));
    let not_before = announced.at + Millis(3 * DAY);
    assert_eq!(walk.bed.quota("acme").deletes_at, Some(not_before));

    // The second notice gets through a day late: the 72 hours run from then.
    walk.wait(DAY);
    walk.bed.came_out("quota.deletion_scheduled", true);
    walk.wait(3 * DAY - 40 * MINUTE);
    assert_eq!(walk.status(walk.idle), SandboxStatus::Paused);
    assert_eq!(walk.said().last(), Some(&("quota.deletion_scheduled", 1)));
    walk.wait(41 * MINUTE);
    assert_eq!(walk.status(walk.idle), SandboxStatus::Terminated);
    let reason = walk.bed.show(walk.idle).row.reason.unwrap();
    assert!(reason.contains("budget was used up"), "{reason}");
    assert_eq!(walk.status(walk.busy), SandboxStatus::Running);
    assert_eq!(walk.state(), "hibernated");
    assert_eq!(
        walk.said(),
        [
            ("quota.warning", 1),
            ("quota.exhausted", 1),
            ("quota.suspended", 1),
            ("quota.deletion_scheduled", 1),
            ("quota.deleted", 1)
        ]
    );
    // What there is nothing to be said about is not said again.
    walk.wait(5 * DAY);
    assert_eq!(walk.said().last(), Some(&("quota.deleted", 1)));
}

#[test]
fn all_new_work_is_refused_and_running_work_is_not_touched() {
    let mut walk = Walk::new();
    let paused = walk.bed.run_of("acme", |_| {});
    let stopped = walk.bed.run_of("acme", |_| {});
    let acme = caller("acme");
    walk.bed.call(&acme, Command::Pause { id: paused });
    walk.bed.answer(HostOutcome::Done);
    walk.bed.call(&acme, Command::Stop { id: stopped });
    walk.bed.answer(HostOutcome::Done);
    walk.spend(1_000);
    let decision = walk.bed.decision();
    let (idle, busy) = (walk.idle, walk.busy);
    let bed = &mut walk.bed;
    let item = bed.item(64);
    let reserve = bed.reserve(item, ReserveMode::Reject);
    let item = bed.item(64);
    let wait = bed.reserve(item, ReserveMode::Wait { seconds: 5 });
    let item = bed.item(64);
    let dry = bed.reserve(item, ReserveMode::DryRun);
    let replies = [
        bed.create_of("acme", |_| {}),
        bed.create_of("acme", |create| create.on_full = OnFull::Queue),
        bed.fork_of("acme", idle),
        bed.batch_of("acme", 2, 64),
        bed.resume_of("acme", paused),
        bed.call(&acme, Command::Start { id: stopped, decision }),
        bed.call(&acme, Command::Touch { id: paused, decision }),
        bed.call(&acme, Command::Keepalive { id: paused, decision }),
        bed.call(&acme, reserve),
        bed.call(&acme, wait),
        bed.call(&acme, dry),
    ];
    for reply in &replies {
        let refusal = refusal(reply);
        assert_eq!(refusal.code, RefusalCode::BudgetExhausted);
        assert_eq!(refusal.resets_at, Some(END));
        assert_eq!(refusal.limit.as_ref().unwrap().used, LIMIT);
    }
    // Calls into what runs pass, and so does giving up.
    let touch = bed.call(&acme, Command::Touch { id: busy, decision });
    assert_eq!(code(&touch), None);
    assert_eq!(code(&bed.call(&acme, Command::Pause { id: idle })), None);
    assert_eq!(code(&bed.call(&acme, Command::Delete { id: stopped })), None);
    // The arithmetic shows in the order of the checks.
    let Command::Create(create) = bed.create(|_| {}) else { panic!() };
    let explain = Command::Explain(Box::new(Explain::Create(*create)));
    let Reply::Explained(explained) = bed.call(&acme, explain) else { panic!() };
    let checks: Vec<_> = explained.checks.iter().map(|line| line.check).collect();
    let order = ["suspended", "never_fits", "rate", "budget", "quota", "degraded"];
    assert_eq!(checks[..6], order);
    assert_eq!(explained.checks[3].refuses, Some(RefusalCode::BudgetExhausted));
    assert!(explained.checks[3].detail.contains("cpu_seconds 10000 of 10000"));
    // Others go on.
    assert_eq!(code(&bed.create_of("default", |_| {})), None);
}

#[test]
fn recovery_from_every_rung_is_one_act() {
    let acts: [fn(&mut Walk); 2] = [Walk::pay, Walk::upgrade];
    for rung in 2..=4 {
        for (number, act) in acts.iter().enumerate() {
            let mut walk = Walk::new();
            walk.climb(rung);
            if rung >= 3 {
                assert_eq!(walk.status(walk.idle), SandboxStatus::Paused);
            }
            act(&mut walk);
            let state = if number == 0 { "warned" } else { "ok" };
            assert_eq!(walk.state(), state, "rung {rung}, act {number}");
            assert_eq!(walk.bed.events("quota.resumed").len(), 1);
            assert_eq!(code(&walk.bed.create_of("acme", |_| {})), None);
            walk.settle();
            assert_eq!(walk.status(walk.idle), SandboxStatus::Running);
            assert_eq!(walk.bed.show(walk.idle).row.paused_by, None);
            // The clock of the deletion is gone for good.
            walk.wait(5 * DAY);
            assert_eq!(walk.status(walk.idle), SandboxStatus::Running);
            assert!(walk.bed.events("quota.deleted").is_empty());
            assert_eq!(walk.bed.quota("acme").deletes_at, None);
        }
    }
}

#[test]
fn the_next_period_takes_everything_back_at_its_first_instant() {
    for (rung, before) in [(1, HOUR), (2, 5 * MINUTE), (3, 6 * HOUR), (4, 2 * DAY)] {
        let mut walk = Walk::at(
            Timestamp(END.0 - i64::try_from(before + DAY * u64::from(rung == 4)).unwrap()),
            |_| {},
        );
        walk.climb(rung);
        let left = END.since(walk.bed.now).0;
        walk.wait(left - 1);
        let refused = (rung >= 2).then_some(RefusalCode::BudgetExhausted);
        let explained = |bed: &mut Bed| {
            let item = bed.item(64);
            let command = bed.reserve(item, ReserveMode::DryRun);
            code(&bed.call(&caller("acme"), command))
        };
        walk.settle();
        assert_eq!(explained(&mut walk.bed), refused, "rung {rung}");
        walk.bed.pass(1);
        assert_eq!(explained(&mut walk.bed), None, "rung {rung}");
        assert_eq!(walk.state(), "ok");
        walk.settle();
        assert_eq!(walk.status(walk.idle), SandboxStatus::Running);
        assert_eq!(walk.bed.events("quota.resumed").len(), usize::from(rung >= 2));
        // The new period warns anew.
        walk.spend(10_000);
        assert_eq!(walk.state(), "exhausted");
    }
}

#[test]
fn an_upgrade_that_is_not_enough_begins_the_ladder_anew() {
    let mut walk = Walk::new();
    walk.climb(4);
    walk.wait(2 * DAY);
    walk.bed.change_plan("acme", |limits| limits.consumption.cpu_seconds = Some(LIMIT + 1));
    assert_eq!(walk.state(), "exhausted");
    walk.settle();
    assert_eq!(walk.status(walk.idle), SandboxStatus::Running);
    // The deletion that was near is off: its 72 hours would be over now.
    walk.wait(2 * DAY);
    assert!(walk.bed.events("quota.deleted").is_empty());
    assert_eq!(walk.state(), "hibernated");
}

#[test]
fn a_paying_tenant_is_never_refused_and_each_step_of_overage_is_said_once() {
    let mut walk = Walk::new();
    walk.pay();
    for thousandths in (700..3_000).step_by(50) {
        walk.spend(thousandths);
        walk.settle();
        assert_eq!(code(&walk.bed.create_of("acme", |_| {})), None, "{thousandths}");
        assert_eq!(code(&walk.bed.fork_of("acme", walk.idle)), None);
        assert_eq!(code(&walk.bed.batch_of("acme", 2, 1)), None);
        walk.wait(MINUTE);
    }
    walk.wait(5 * DAY);
    assert_eq!(walk.status(walk.idle), SandboxStatus::Running);
    let refused = |change: &plimsoll_engine::Change| matches!(change, plimsoll_engine::Change::Decision(row) if row.code.is_some());
    assert!(!walk.bed.changes.iter().any(refused));
    let passed: Vec<u64> = walk
        .bed
        .events("quota.overage")
        .iter()
        .map(|event| event.data["passed_bp"].as_u64().unwrap())
        .collect();
    assert_eq!(passed[..8], [10_000, 12_500, 15_000, 17_500, 20_000, 22_500, 25_000, 27_500]);
    assert!(passed.is_sorted_by(|a, b| a < b));
    for kind in ["quota.exhausted", "quota.suspended", "quota.resumed", "quota.unnotified"] {
        assert!(walk.bed.events(kind).is_empty(), "{kind}");
    }
    assert_eq!(walk.bed.events("quota.warning").len(), 1);
}

#[test]
fn a_restart_on_any_rung_keeps_it_and_says_nothing_twice() {
    for rung in 1..=4 {
        let mut walk = Walk::new();
        walk.climb(rung);
        let (state, said) = (walk.state(), walk.said().len());
        walk.bed.restart();
        assert_eq!((walk.state(), walk.said().len()), (state, said), "rung {rung}");
        walk.settle();
        assert_eq!((walk.state(), walk.said().len()), (state, said), "rung {rung}");
        if rung >= 2 {
            let reply = walk.bed.create_of("acme", |_| {});
            assert_eq!(code(&reply), Some(RefusalCode::BudgetExhausted));
        }
        // Each further step comes as if nothing had been.
        if rung == 4 {
            walk.wait(3 * DAY + HOUR);
            assert_eq!(walk.status(walk.idle), SandboxStatus::Terminated);
        } else if rung == 2 {
            walk.wait(11 * MINUTE);
            assert_eq!(walk.state(), "hibernated");
            walk.bed.restart();
            walk.settle();
            walk.pay();
            walk.settle();
            assert_eq!(walk.status(walk.idle), SandboxStatus::Running);
        }
        assert!(walk.said().iter().all(|(_, count)| *count == 1), "{:?}", walk.said());
    }
}

#[test]
fn a_restart_right_after_exhaustion_does_not_let_go_of_it() {
    let mut walk = Walk::new();
    walk.spend(1_000);
    // The use that made it so was a moment ago, and is written with the step.
    walk.bed.restart();
    assert_eq!(walk.state(), "exhausted");
    assert!(walk.bed.events("quota.resumed").is_empty());
}

#[test]
fn nothing_expires_for_being_paused_while_it_may_not_be_resumed() {
    let mut walk = Walk::new();
    let limit = Lifecycle { max_paused_seconds: Some(3600), ..Lifecycle::default() };
    let own = walk.bed.run_of("acme", |create| create.lifecycle = limit);
    walk.bed.call(&caller("acme"), Command::Pause { id: own });
    walk.bed.answer(HostOutcome::Done);
    walk.others.push(own);
    walk.climb(2);
    walk.wait(DAY);
    assert_eq!(walk.status(own), SandboxStatus::Paused);
    walk.pay();
    // Its clock begins anew, and then holds.
    walk.wait(HOUR - MINUTE);
    assert_eq!(walk.status(own), SandboxStatus::Paused);
    walk.wait(2 * MINUTE);
    assert_eq!(walk.status(own), SandboxStatus::Terminated);
}

#[test]
fn what_becomes_idle_later_is_paused_later_and_what_resists_is_left_alone_for_a_while() {
    let mut walk = Walk::new();
    walk.climb(3);
    let busy = walk.busy;
    assert_eq!(walk.status(busy), SandboxStatus::Running);
    // It ends what it did; its host fails to pause it at first.
    walk.minutes(12);
    assert_eq!(walk.status(busy), SandboxStatus::Pausing);
    walk.bed.answer(HostOutcome::Failed { detail: "no".to_owned() });
    assert_eq!(walk.status(busy), SandboxStatus::Running);
    assert_eq!(walk.bed.show(busy).row.paused_by, None);
    walk.minutes(8);
    assert!(walk.bed.sent.is_empty());
    walk.minutes(3);
    assert_eq!(walk.status(busy), SandboxStatus::Pausing);
}

#[test]
fn a_resume_while_the_ladder_pauses_comes_through_after_recovery() {
    let mut walk = Walk::new();
    walk.climb(2);
    walk.minutes(12);
    assert_eq!(walk.status(walk.idle), SandboxStatus::Pausing);
    let reply = walk.bed.resume_of("acme", walk.idle);
    assert_eq!(code(&reply), Some(RefusalCode::BudgetExhausted));
    walk.pay();
    assert_eq!(walk.status(walk.idle), SandboxStatus::Pausing);
    walk.settle();
    assert_eq!(walk.status(walk.idle), SandboxStatus::Running);
}

#[test]
fn a_budget_of_nothing_is_used_up_from_the_start() {
    let mut bed = Bed::new();
    bed.report(Vec::new());
    bed.tenant("acme", |limits| limits.consumption.gib_hours = Some(0));
    assert_eq!(code(&bed.create_of("acme", |_| {})), Some(RefusalCode::BudgetExhausted));
    assert_eq!(bed.quota("acme").state, "exhausted");
}

#[test]
fn a_queued_create_waits_for_the_budget_and_comes_up_with_the_upgrade() {
    let mut walk = Walk::new();
    walk.bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(0));
    let reply = walk.bed.create_of("acme", |create| create.on_full = OnFull::Queue);
    let id = sandbox(&reply).row.id;
    walk.spend(1_000);
    walk.settle();
    assert_eq!(walk.status(id), SandboxStatus::Queued);
    walk.upgrade();
    assert_eq!(walk.status(id), SandboxStatus::Provisioning);
}
