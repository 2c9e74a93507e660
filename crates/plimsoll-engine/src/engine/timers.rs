//! What time brings about.

use plimsoll_types::{SandboxStatus, Timestamp};

use super::Engine;
use super::state::{Ix, Timer};
use crate::output::Output;

impl Engine {
    /// Everything that is due, in the order of its time.
    pub(super) fn run_timers(&mut self, now: Timestamp, out: &mut Output) {
        while let Some((at, timer)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            match timer {
                Timer::Host(ix) => {
                    if self.hosts.get(ix).is_some() {
                        self.check_host(now, ix, out);
                        let pool = self.hosts[ix].pool;
                        self.stir(pool);
                    }
                }
                Timer::Sandbox(ix, id) => {
                    let current = self
                        .sandboxes
                        .get(ix)
                        .is_some_and(|sandbox| sandbox.row.id == id && sandbox.timer == Some(at));
                    if current {
                        self.sandboxes[ix].timer = None;
                        self.sandbox_due(now, ix, out);
                    }
                }
                Timer::Queue(pool) => {
                    if self.pools.get(pool).is_some() {
                        self.check_queue(now, pool, out);
                    }
                }
                Timer::Parked => self.check_parked(now, out),
                Timer::Tenant(ix) => self.ladder_due(now, at, ix),
                Timer::States => self.write_states(now, out),
            }
        }
        self.step_ladders(now, out);
        self.sweep_wheel(now, out);
        self.sweep_tickets(now);
    }

    /// Sets a sandbox's one timer to what is due next.
    pub(super) fn arm_sandbox(&mut self, now: Timestamp, ix: Ix) {
        let next = self.next_due(now, ix);
        let sandbox = &mut self.sandboxes[ix];
        if sandbox.timer == next {
            return;
        }
        let id = sandbox.row.id;
        if let Some(old) = std::mem::replace(&mut sandbox.timer, next) {
            self.timers.remove(&(old, Timer::Sandbox(ix, id)));
        }
        if let Some(at) = next {
            self.timers.insert((at, Timer::Sandbox(ix, id)));
        }
    }

    fn next_due(&self, now: Timestamp, ix: Ix) -> Option<Timestamp> {
        let row = &self.sandboxes[ix].row;
        if row.status == SandboxStatus::Terminating {
            return Some(row.status_since + self.config.terminate_timeout);
        }
        self.next_limit(now, ix)
    }

    fn sandbox_due(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let row = &self.sandboxes[ix].row;
        if row.status == SandboxStatus::Terminating {
            if now.since(row.status_since) >= self.config.terminate_timeout {
                // Bounded in time (S3): the ledger lets go; should the guest show up, its host is
                // told to end it.
                self.gone(now, ix, Some("ended; its host has not confirmed it"), out);
                return;
            }
        } else {
            self.enforce_limits(now, ix, out);
        }
        if self.sandboxes.get(ix).is_some_and(|sandbox| !sandbox.row.status.is_terminal()) {
            self.arm_sandbox(now, ix);
        }
    }
}
