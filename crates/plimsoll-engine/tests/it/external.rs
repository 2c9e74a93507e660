//! External pools: providers that are asked, and the limit that their refusals teach. And guests
//! that an operator ends by name.

use plimsoll_engine::{Admin, Command, CreateSandbox, EnrolProvider, Input, Reply, Token};
use plimsoll_types::{
    GuestStatus, HostOp, HostOutcome, HostReport, OnFull, RefusalCode, SandboxId, SandboxStatus,
};

use super::bed::{Bed, caller, guest, host, operator, pool, refusal, sandbox};

fn enrol(bed: &mut Bed, to: &str) -> Reply {
    let provider = EnrolProvider {
        id: host("provider"),
        pool: pool(to),
        address: "https://provider.example".to_owned(),
        secret: "s".to_owned(),
    };
    let token = bed.send(&operator(), Command::Admin(Box::new(Admin::PutProvider(provider))));
    bed.reply(token).unwrap()
}

/// A cell whose only pool for these guests is a provider's.
fn bed(limit: Option<u64>) -> Bed {
    let mut bed = Bed::new();
    bed.pool("outside", |settings| {
        settings.external = true;
        settings.limit = limit;
    });
    assert!(matches!(enrol(&mut bed, "outside"), Reply::Done));
    say(&mut bed, 1, |_| {});
    bed
}

/// The provider answers the question that it was asked.
fn say(bed: &mut Bed, sequence: u64, change: impl FnOnce(&mut HostReport)) {
    assert_eq!(std::mem::take(&mut bed.probes), [host("provider")]);
    let mut report = HostReport {
        // What it says of its own place is its own affair.
        incarnation: Some(9),
        address: Some("http://elsewhere".to_owned()),
        cpu_millis_total: plimsoll_types::MilliCpu(16_000),
        memory_mib_total: plimsoll_types::Mib(32 * 1024),
        memory_mib_used: plimsoll_types::Mib(1024),
        memory_mib_admittable: Some(30_000),
        complete: true,
        ..HostReport::new(host("provider"), pool("local"), "boot-1", sequence, bed.now)
    };
    change(&mut report);
    let token = Token(bed.number());
    bed.input(Input::Report { token, report: Box::new(report), probe: true });
    assert!(matches!(bed.reply(token), Some(Reply::Heartbeat(_))));
}

fn outside(create: &mut CreateSandbox) {
    create.pool = Some(pool("outside"));
}

fn queued(create: &mut CreateSandbox) {
    outside(create);
    create.on_full = OnFull::Queue;
}

fn create(bed: &mut Bed, change: impl FnOnce(&mut CreateSandbox)) -> Reply {
    let command = bed.create(change);
    bed.call(&caller("default"), command)
}

fn full() -> HostOutcome {
    HostOutcome::Refused { code: RefusalCode::NoCapacity, detail: "four run here".to_owned() }
}

/// Time passes in which the provider answers.
fn answer_polls(bed: &mut Bed, seconds: u64, first: u64) {
    for step in 0..seconds / 10 {
        bed.pass(10_000);
        say(bed, first + step, |report| report.complete = false);
    }
}

#[test]
fn a_provider_is_asked_as_often_as_a_host_would_report_and_stays_where_it_was_put() {
    let mut bed = bed(None);
    bed.pass(9_000);
    assert!(bed.probes.is_empty());
    bed.pass(1_000);
    say(&mut bed, 2, |_| {});
    let id = bed.running(outside);
    let row = bed.show(id).row;
    assert_eq!((row.pool, row.host), (Some(pool("outside")), Some(host("provider"))));
    // Silence is as with any host: no candidate after its stale bound, and lost after the other.
    for _ in 0..13 {
        bed.pass(10_000);
        for name in std::mem::take(&mut bed.probes) {
            bed.input(Input::ProbeFailed { host: name });
        }
    }
    assert_eq!(bed.status(id), SandboxStatus::Failed);
    let reply = create(&mut bed, outside);
    assert_eq!(refusal(&reply).code, RefusalCode::NoHealthyHosts);
    // It answers again with the guest running, and without another one asked for meanwhile.
    bed.pass(10_000);
    say(&mut bed, 3, |report| report.guests = vec![guest(id, GuestStatus::Running, 40)]);
    assert_eq!(bed.status(id), SandboxStatus::Running);
}

#[test]
fn a_provider_that_loses_a_guest_loses_its_record_at_the_second_word() {
    let mut bed = bed(None);
    let id = bed.running(outside);
    for sequence in 2..5 {
        bed.pass(10_000);
        say(&mut bed, sequence, |_| {});
    }
    let row = bed.show(id).row;
    assert_eq!(row.status, SandboxStatus::Failed);
    assert!(row.reason.as_deref().unwrap().contains("guest_lost"));
}

#[test]
fn only_an_external_pool_takes_a_provider() {
    let mut bed = Bed::new();
    let reply = enrol(&mut bed, "local");
    let no = refusal(&reply);
    assert_eq!((no.code, no.field.as_ref().unwrap().0), (RefusalCode::InvalidRequest, "pool"));
    assert_eq!(refusal(&enrol(&mut bed, "nowhere")).code, RefusalCode::UnknownPool);
}

#[test]
fn a_restarted_cell_asks_its_providers_again() {
    let mut bed = bed(None);
    bed.restart();
    bed.pass(1);
    assert_eq!(bed.probes, [host("provider")]);
}

#[test]
fn a_refusal_lowers_the_learned_limit_to_what_runs_there_and_time_raises_it() {
    let mut bed = bed(Some(10));
    for _ in 0..4 {
        bed.running(outside);
    }
    let waiting = sandbox(&create(&mut bed, queued)).row.id;
    bed.answer(full());
    assert_eq!(bed.status(waiting), SandboxStatus::Queued);
    let view = bed.pool_view("outside");
    assert_eq!((view.held, view.learned), (4, Some(4)));
    // Nobody is sent there to be refused, and the answer is the ordinary one.
    assert_eq!(refusal(&create(&mut bed, outside)).code, RefusalCode::NoCapacity);
    answer_polls(&mut bed, 50, 2);
    assert!(bed.sent.is_empty());
    // After a minute one more is tried; it is refused, and the next trial is two minutes off.
    answer_polls(&mut bed, 10, 7);
    assert_eq!(bed.sent.len(), 1);
    bed.answer(full());
    assert_eq!(bed.pool_view("outside").learned, Some(4));
    answer_polls(&mut bed, 110, 8);
    assert!(bed.sent.is_empty());
    answer_polls(&mut bed, 10, 19);
    assert_eq!(bed.sent.len(), 1);
}

#[test]
fn a_start_that_is_taken_above_the_learned_limit_raises_it() {
    let mut bed = bed(Some(10));
    for _ in 0..2 {
        bed.running(outside);
    }
    let waiting = sandbox(&create(&mut bed, queued)).row.id;
    bed.answer(full());
    answer_polls(&mut bed, 60, 2);
    assert_eq!(bed.sent.len(), 1);
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.status(waiting), SandboxStatus::Running);
    let view = bed.pool_view("outside");
    assert_eq!((view.held, view.learned), (3, Some(3)));
    answer_polls(&mut bed, 420, 8);
    assert_eq!(bed.pool_view("outside").learned, None, "as much as the operator allows");
}

#[test]
fn a_burst_that_meets_a_full_provider_ends_at_what_it_takes() {
    let mut bed = bed(None);
    let ids: Vec<SandboxId> = (0..10).map(|_| sandbox(&create(&mut bed, queued)).row.id).collect();
    for number in 0..10 {
        bed.answer(if number < 4 { HostOutcome::Done } else { full() });
    }
    let running = ids.iter().filter(|id| bed.status(**id) == SandboxStatus::Running).count();
    let view = bed.pool_view("outside");
    assert_eq!((running, view.held, view.learned), (4, 4, Some(4)));
}

#[test]
fn a_host_of_the_cells_own_teaches_no_limit() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    create(&mut bed, |create| create.on_full = OnFull::Queue);
    bed.answer(full());
    assert_eq!(bed.pool_view("local").learned, None);
}

#[test]
fn an_unexpected_guest_is_named_and_can_be_ended() {
    let mut bed = Bed::new();
    let stranger = SandboxId(77);
    let mut seen = guest(stranger, GuestStatus::Running, 40);
    seen.attempt = 3;
    bed.heartbeat("h1", |report| report.guests = vec![seen]);
    assert_eq!(bed.events("host.unexpected_guests").len(), 1);
    let name = format!("{stranger}.3");
    let end = |bed: &mut Bed, guest: &str| {
        let end = Admin::EndUnexpected { host: host("h1"), guest: guest.to_owned() };
        bed.call(&operator(), Command::Admin(Box::new(end)))
    };
    assert_eq!(refusal(&end(&mut bed, "other")).code, RefusalCode::NotFound);
    assert!(matches!(end(&mut bed, &name), Reply::Done));
    // The number was too low for its host: once more above it, and not for ever.
    let highest = plimsoll_types::Fence { epoch: 1, number: 900 };
    bed.answer(HostOutcome::Fenced { highest });
    let sent = bed.answer(HostOutcome::Fenced { highest });
    assert!(matches!(sent.op, HostOp::End { id, attempt: 3 } if id == stranger), "{sent:?}");
    assert!(sent.fence.number > 900 && bed.sent.is_empty());
    bed.heartbeat("h1", |_| {});
    assert_eq!(refusal(&end(&mut bed, &name)).code, RefusalCode::NotFound);
    // A guest of the cell's own is none.
    let own = bed.running(|_| {});
    assert_eq!(refusal(&end(&mut bed, &own.to_string())).code, RefusalCode::NotFound);
}
