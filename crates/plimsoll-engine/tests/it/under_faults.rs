//! What the simulator has found, each as the shortest story that shows it.

mod agents;
mod charges;
mod losses;
mod waiting;

use plimsoll_engine::{Command, Input, Read, Reply, ReserveMode, Token};
use plimsoll_types::{
    Driver, Fence, GuestStatus, HostOp, HostOutcome, Mib, OnFull, PauseKind, Preemption,
    PreemptionMode, SandboxId, SandboxStatus,
};

use std::sync::Arc;

use super::bed::{Bed, caller, guest, host, operator, pool, refusal, sandbox};

fn done() -> HostOutcome {
    HostOutcome::Done
}

fn failed() -> HostOutcome {
    HostOutcome::Failed { detail: "broken".to_owned() }
}

fn unknown() -> HostOutcome {
    HostOutcome::Unknown { detail: "no answer".to_owned() }
}

fn fenced(epoch: u64, number: u64) -> HostOutcome {
    HostOutcome::Fenced { highest: Fence { epoch, number } }
}

fn vm(create: &mut plimsoll_engine::CreateSandbox) {
    create.template = plimsoll_types::TemplateName::new("vm").unwrap();
}

fn resume(bed: &mut Bed, id: SandboxId) -> Reply {
    let decision = bed.decision();
    bed.call(&caller("default"), Command::Resume { id, decision })
}

fn register(bed: &mut Bed, boot_id: &str) -> Reply {
    let token = Token(bed.number());
    let boot_id = boot_id.to_owned();
    let (host, pool) = (host("h1"), pool("local"));
    bed.input(Input::Register { token, host, pool, address: None, secret: None, boot_id });
    bed.reply(token).unwrap()
}

fn incarnation(reply: &Reply) -> u64 {
    match reply {
        Reply::Registered { incarnation, .. } => *incarnation,
        other => panic!("not registered: {other:?}"),
    }
}

/// A pool of so many slots whose pauses free them, with preemption of idle guests.
fn small_pool(bed: &mut Bed, slots: u64) {
    bed.pool("local", |settings| {
        settings.limit = Some(slots);
        settings.preemption =
            Preemption { mode: PreemptionMode::Idle, idle_seconds: 10, ..Preemption::default() };
    });
    bed.template("vm", |template| template.driver = Driver::Gvisor);
    bed.heartbeat("h1", |_| {});
}
