//! `kill -9` at any moment: what was acknowledged stays, what was ended never comes back.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use plimsoll_types::{
    Driver, Fence, GuestSpec, GuestStatus, HostOp, HostOutcome, PauseKind, SandboxId,
};

use crate::processes::Program;
use crate::rig::{Cell, PATIENCE, spec};

/// What is known of one guest from answers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Absent,
    Running,
    Paused,
    /// The last command brought no answer: it may have been carried out.
    Open,
}

/// A small generator: the test is the same on every run but for the moment of each kill.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % sides
    }
}

fn guest(id: u128, attempt: u32) -> GuestSpec {
    GuestSpec { attempt, ..spec(id, Driver::Simulated) }
}

#[tokio::test]
async fn kill_nine_at_any_moment_loses_nothing_that_was_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let mut dice = Dice(7);
    let mut number = 0;
    let mut known: BTreeMap<u128, (u32, Known)> =
        (1..=6).map(|id| (id, (1, Known::Absent))).collect();
    let mut answers = 0;
    for _ in 0..15 {
        let program = Program::start_with(&mut cell, data.path(), "simulated").await;
        check(&cell, &mut known).await;
        let commands: Vec<(u128, HostOp)> = known
            .iter()
            .map(|(id, (attempt, state))| {
                let (name, attempt) = (SandboxId(*id), *attempt);
                let op = match (state, dice.roll(4)) {
                    (Known::Absent, _) => HostOp::Start { guest: Box::new(guest(*id, attempt)) },
                    (_, 0) => HostOp::End { id: name, attempt },
                    (Known::Paused, _) => HostOp::Resume { id: name, attempt },
                    _ => HostOp::Pause { id: name, attempt, kind: PauseKind::Checkpoint },
                };
                (*id, op)
            })
            .collect();
        let sent = commands.iter().map(|(_, op)| {
            number += 1;
            cell.send_as(Fence { epoch: 1, number }, op.clone())
        });
        let all = join_all(sent);
        let kill_after = Duration::from_micros(dice.roll(350_000));
        let (outcomes, ()) = tokio::join!(all, async {
            tokio::time::sleep(kill_after).await;
            program.kill().await;
        });
        for ((id, op), outcome) in commands.into_iter().zip(outcomes) {
            let (attempt, state) = known.get_mut(&id).unwrap();
            answers += usize::from(outcome == HostOutcome::Done);
            match (outcome, op) {
                (HostOutcome::Done, HostOp::Start { .. } | HostOp::Resume { .. }) => {
                    *state = Known::Running;
                }
                (HostOutcome::Done, HostOp::Pause { .. }) => *state = Known::Paused,
                (HostOutcome::Done, HostOp::End { .. }) => {
                    *state = Known::Absent;
                    *attempt += 1;
                }
                (HostOutcome::Unknown { .. }, _) => *state = Known::Open,
                (other, op) => panic!("{op:?}: {other:?}"),
            }
        }
    }
    assert!(answers > 0, "some commands came through before the kill");
}

/// Holds what the agent says against what was acknowledged, and learns what was left open.
async fn check(cell: &Cell, known: &mut BTreeMap<u128, (u32, Known)>) {
    let settled = tokio::time::timeout(PATIENCE, async {
        loop {
            let report = cell.capacity().await;
            let guests = report.guests.unwrap();
            let busy = |status| {
                !matches!(status, GuestStatus::Running | GuestStatus::Paused | GuestStatus::Exited)
            };
            if report.complete && !guests.iter().any(|guest| busy(guest.status)) {
                return guests;
            }
        }
    });
    let guests = settled.await.expect("what was under way comes to an end");
    for (id, (attempt, state)) in known {
        let name = SandboxId(*id).to_string();
        let found = guests.iter().find(|guest| guest.id == name);
        let now = match found {
            None => Known::Absent,
            Some(guest) => {
                assert_eq!(guest.attempt, Some(*attempt), "an ended attempt is back: {guest:?}");
                match guest.status {
                    GuestStatus::Running => Known::Running,
                    GuestStatus::Paused => Known::Paused,
                    other => panic!("{id} is {other}"),
                }
            }
        };
        if *state == Known::Open {
            if now == Known::Absent {
                // It was never begun, or it was ended: in both cases the next try is another.
                *attempt += 1;
            }
            *state = now;
        }
        assert_eq!(*state, now, "guest {id}, attempt {attempt}");
    }
}
