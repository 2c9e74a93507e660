//! Lifecycle limits (seed 001, section 4): where a value comes from, and what it does.
//!
//! That a value is off (-1) or at least 60 s is held by `plimsoll-policy/src/lifecycle.rs` and, at
//! the edge, by the API's bodies.

use plimsoll_engine::rows::Rows;
use plimsoll_engine::{Command, CreateSandbox, EngineConfig, PatchSandbox};
use plimsoll_types::{
    Driver, HostOp, HostOutcome, Lifecycle, OnFull, RefusalCode, SandboxId, SandboxStatus,
    TemplateName, Timestamp,
};

use super::bed::{Bed, caller, refusal, sandbox};

/// One limit, with its name and the one field of a lifecycle that it is.
type Limit = (&'static str, fn(i64) -> Lifecycle);

const LIMITS: [Limit; 4] = [
    ("idle", |seconds| Lifecycle { idle_timeout_seconds: Some(seconds), ..Lifecycle::default() }),
    ("max_run", |seconds| Lifecycle { max_run_seconds: Some(seconds), ..Lifecycle::default() }),
    ("max_paused", |seconds| Lifecycle {
        max_paused_seconds: Some(seconds),
        ..Lifecycle::default()
    }),
    ("ttl", |seconds| Lifecycle { ttl_seconds: Some(seconds), ..Lifecycle::default() }),
];

fn vm(create: &mut CreateSandbox) {
    create.template = TemplateName::new("vm").unwrap();
}

fn with_defaults(lifecycle: Lifecycle) -> Bed {
    let config = EngineConfig { lifecycle, ..EngineConfig::default() };
    let mut bed = Bed::with(config, Rows::default(), 1, Timestamp(1_800_000_000_000));
    bed.template("vm", |template| template.driver = Driver::Gvisor);
    bed.heartbeat("h1", |_| {});
    bed
}

/// A sandbox in the state that the limit looks at.
fn subject(bed: &mut Bed, limit: &str, lifecycle: Lifecycle) -> SandboxId {
    let id = bed.running(|create| {
        vm(create);
        create.lifecycle = lifecycle;
    });
    if limit == "max_paused" {
        bed.call(&caller("default"), Command::Pause { id });
        bed.answer(HostOutcome::Done);
    }
    id
}

/// Whether the limit has acted, by what it has sent.
fn acted(bed: &Bed) -> bool {
    !bed.sent.is_empty()
}

fn pass(bed: &mut Bed, seconds: u64) {
    for _ in 0..seconds / 10 {
        bed.pass(10_000);
        // A host that is heard of; its guests are none of the test's business.
        bed.heartbeat("h1", |report| report.complete = false);
    }
}

#[test]
fn a_requests_own_value_counts() {
    for (name, limit) in LIMITS {
        let mut bed = with_defaults(limit(3_600));
        subject(&mut bed, name, limit(120));
        pass(&mut bed, 110);
        assert!(!acted(&bed), "{name}");
        pass(&mut bed, 20);
        assert!(acted(&bed), "{name}");
    }
}

#[test]
fn what_a_request_leaves_out_takes_the_operators_default() {
    for (name, limit) in LIMITS {
        let mut bed = with_defaults(limit(120));
        subject(&mut bed, name, Lifecycle::default());
        pass(&mut bed, 110);
        assert!(!acted(&bed), "{name}");
        pass(&mut bed, 20);
        assert!(acted(&bed), "{name}");
    }
}

#[test]
fn a_pools_default_comes_before_the_cells() {
    for (name, limit) in LIMITS {
        let mut bed = with_defaults(limit(3_600));
        bed.pool("local", |settings| settings.lifecycle = limit(120));
        subject(&mut bed, name, Lifecycle::default());
        pass(&mut bed, 130);
        assert!(acted(&bed), "{name}");
    }
}

#[test]
fn a_pools_new_default_holds_for_those_who_are_there() {
    for (name, limit) in LIMITS {
        let mut bed = with_defaults(Lifecycle::default());
        subject(&mut bed, name, Lifecycle::default());
        pass(&mut bed, 130);
        assert!(!acted(&bed), "{name}");
        bed.pool("local", |settings| settings.lifecycle = limit(120));
        pass(&mut bed, 10);
        assert!(acted(&bed), "{name}");
    }
}

#[test]
fn minus_one_turns_a_limit_off_whatever_the_default() {
    for (name, limit) in LIMITS {
        let mut bed = with_defaults(limit(120));
        subject(&mut bed, name, limit(-1));
        pass(&mut bed, 600);
        assert!(!acted(&bed), "{name}");
    }
}

#[test]
fn a_patch_changes_one_value_and_leaves_the_others() {
    for (name, limit) in LIMITS {
        let mut bed = with_defaults(Lifecycle::default());
        let id = subject(&mut bed, name, limit(120));
        let patch = |lifecycle| PatchSandbox {
            id,
            labels: None,
            priority: None,
            preemptible: None,
            lifecycle: Some(lifecycle),
        };
        // Another limit's change leaves this one as it is.
        let other = if name == "ttl" { LIMITS[0].1(7_200) } else { LIMITS[3].1(7_200) };
        bed.call(&caller("default"), Command::Patch(Box::new(patch(other))));
        bed.call(&caller("default"), Command::Patch(Box::new(patch(limit(300)))));
        pass(&mut bed, 290);
        assert!(!acted(&bed), "{name}");
        pass(&mut bed, 20);
        assert!(acted(&bed), "{name}");
    }
}

#[test]
fn an_idle_guest_is_paused_and_its_next_call_resumes_it() {
    let mut bed = with_defaults(Lifecycle::default());
    let id = subject(&mut bed, "idle", LIMITS[0].1(60));
    let touch = |bed: &mut Bed| {
        let decision = bed.decision();
        bed.call(&caller("default"), Command::Touch { id, decision })
    };
    pass(&mut bed, 50);
    touch(&mut bed);
    pass(&mut bed, 50);
    assert!(!acted(&bed), "a call into it begins its time anew");
    pass(&mut bed, 10);
    let row = bed.show(id).row;
    assert_eq!((row.status, row.idled), (SandboxStatus::Pausing, true));
    assert!(row.reason.as_deref().unwrap().contains("idle"));
    bed.answer(HostOutcome::Done);
    touch(&mut bed);
    assert_eq!(bed.status(id), SandboxStatus::Resuming);
}

#[test]
fn a_long_runner_is_paused_busy_or_not_and_gives_its_slot_back() {
    let mut bed = with_defaults(Lifecycle::default());
    bed.pool("local", |settings| settings.limit = Some(1));
    let id = subject(&mut bed, "max_run", LIMITS[1].1(120));
    for _ in 0..12 {
        let decision = bed.decision();
        bed.call(&caller("default"), Command::Touch { id, decision });
        pass(&mut bed, 10);
    }
    assert_eq!(bed.status(id), SandboxStatus::Pausing);
    assert_eq!(bed.events("sandbox.max_run").len(), 1);
    bed.answer(HostOutcome::Done);
    assert!(bed.show(id).row.slot_released);
    assert_eq!(bed.pool_view("local").held, 0);
}

#[test]
fn a_break_begins_the_run_anew() {
    let mut bed = with_defaults(Lifecycle::default());
    let id = subject(&mut bed, "max_run", LIMITS[1].1(120));
    pass(&mut bed, 110);
    bed.call(&caller("default"), Command::Pause { id });
    bed.answer(HostOutcome::Done);
    bed.resume(id);
    bed.answer(HostOutcome::Done);
    pass(&mut bed, 110);
    assert!(!acted(&bed));
    pass(&mut bed, 10);
    assert!(acted(&bed));
}

#[test]
fn what_rests_for_too_long_is_deleted_paused_or_stopped() {
    for stops in [false, true] {
        let mut bed = with_defaults(Lifecycle::default());
        let lifecycle = LIMITS[2].1(120);
        let id = bed.running(|create| {
            vm(create);
            create.lifecycle = lifecycle;
        });
        // While it runs, the limit does not look.
        pass(&mut bed, 300);
        let command = if stops { Command::Stop { id } } else { Command::Pause { id } };
        bed.call(&caller("default"), command);
        bed.answer(HostOutcome::Done);
        pass(&mut bed, 110);
        assert!(!acted(&bed));
        pass(&mut bed, 10);
        let row = bed.show(id).row;
        assert_eq!(row.status, SandboxStatus::Terminating, "stopped: {stops}");
        assert_eq!(row.reason.as_deref(), Some("expired: max_paused_seconds"));
        let said = bed.events("sandbox.expired");
        assert_eq!(said.len(), 1);
        assert!(said[0].data.to_string().contains("max_paused_seconds"));
        assert!(matches!(bed.answer(HostOutcome::Done).op, HostOp::End { .. }));
        assert_eq!(bed.status(id), SandboxStatus::Terminated);
    }
}

#[test]
fn what_somebody_waits_for_is_not_deleted_for_resting() {
    let mut bed = with_defaults(Lifecycle::default());
    bed.pool("local", |settings| settings.limit = Some(1));
    let id = subject(&mut bed, "max_paused", LIMITS[2].1(60));
    bed.running(vm);
    bed.resume(id);
    pass(&mut bed, 120);
    assert_eq!(bed.status(id), SandboxStatus::Paused);
}

#[test]
fn time_to_live_ends_it_in_every_state() {
    let states: [fn(&mut Bed, SandboxId); 4] = [
        |_, _| (),
        |bed, id| {
            bed.call(&caller("default"), Command::Pause { id });
            bed.answer(HostOutcome::Done);
        },
        |bed, id| {
            bed.call(&caller("default"), Command::Stop { id });
            bed.answer(HostOutcome::Done);
        },
        |bed, id| {
            bed.call(&caller("default"), Command::Pause { id });
            bed.sent.clear();
        },
    ];
    for (number, state) in states.into_iter().enumerate() {
        let mut bed = with_defaults(Lifecycle::default());
        let id = subject(&mut bed, "ttl", LIMITS[3].1(120));
        state(&mut bed, id);
        pass(&mut bed, 120);
        assert_eq!(bed.status(id), SandboxStatus::Terminating, "{number}");
        assert_eq!(bed.show(id).row.reason.as_deref(), Some("expired: ttl_seconds"));
    }
    // One that waits has nothing on any host.
    let mut bed = with_defaults(Lifecycle::default());
    bed.pool("local", |settings| settings.limit = Some(0));
    let command = bed.create(|create| {
        vm(create);
        create.on_full = OnFull::Queue;
        create.lifecycle = LIMITS[3].1(60);
    });
    let id = sandbox(&bed.call(&caller("default"), command)).row.id;
    pass(&mut bed, 60);
    assert_eq!(bed.status(id), SandboxStatus::Terminated);
}

#[test]
fn a_limits_pause_that_fails_is_not_asked_for_again_at_once() {
    let mut bed = with_defaults(Lifecycle::default());
    let id = subject(&mut bed, "idle", LIMITS[0].1(60));
    pass(&mut bed, 60);
    bed.answer(HostOutcome::Failed { detail: "disk full".to_owned() });
    assert_eq!(bed.status(id), SandboxStatus::Running);
    assert!(!acted(&bed));
    pass(&mut bed, 50);
    assert!(!acted(&bed));
    pass(&mut bed, 10);
    assert!(acted(&bed), "but a minute later");
}

/// Public failure P3: disk is counted by itself, and what rests for too long gives it back.
#[test]
fn a_full_disk_refuses_by_its_name_until_what_rests_is_deleted() {
    let mut bed = with_defaults(Lifecycle::default());
    bed.template("vm", |template| {
        template.driver = Driver::Gvisor;
        template.counted.insert("disk_mib".to_owned(), 1_000);
    });
    let disk = |bed: &mut Bed, free: u64| {
        bed.heartbeat("h1", |report| {
            report.complete = false;
            report.counted.insert("disk_mib".to_owned(), free);
        });
    };
    disk(&mut bed, 1_000);
    let id = subject(&mut bed, "max_paused", LIMITS[2].1(60));
    disk(&mut bed, 0);
    let command = bed.create(vm);
    let reply = bed.call(&caller("default"), command);
    let no = refusal(&reply);
    let counted = no.counts.as_ref().unwrap().filtered.counted;
    assert_eq!((no.code, counted), (RefusalCode::NoCapacity, 1));
    let command = bed.create(|create| {
        vm(create);
        create.on_full = OnFull::Queue;
    });
    let waiting = sandbox(&bed.call(&caller("default"), command)).row.id;
    for _ in 0..6 {
        bed.pass(10_000);
        disk(&mut bed, 0);
    }
    assert!(matches!(bed.answer(HostOutcome::Done).op, HostOp::End { .. }));
    assert_eq!(bed.status(id), SandboxStatus::Terminated);
    disk(&mut bed, 1_000);
    assert_eq!(bed.status(waiting), SandboxStatus::Provisioning);
}
