//! What time brings about.

use std::collections::BTreeSet;

use plimsoll_types::{SandboxStatus, Timestamp};

use super::Engine;
use super::state::{Ix, Timer};
use crate::output::Output;

/// What is due when. The earliest time stands beside the rest: every input asks for it, and mostly
/// nothing is due.
#[derive(Debug, Default)]
pub(super) struct Timers {
    set: BTreeSet<(Timestamp, Timer)>,
    first: Option<Timestamp>,
}

impl Timers {
    pub(super) fn insert(&mut self, timer: (Timestamp, Timer)) {
        self.first = Some(self.first.map_or(timer.0, |first| first.min(timer.0)));
        self.set.insert(timer);
    }

    pub(super) fn remove(&mut self, timer: &(Timestamp, Timer)) {
        if self.set.remove(timer) && self.first == Some(timer.0) {
            self.first = self.set.first().map(|(at, _)| *at);
        }
    }

    /// When the earliest is due.
    pub(super) fn first(&self) -> Option<Timestamp> {
        self.first
    }

    /// Takes the earliest out, if it is due.
    fn pop_due(&mut self, now: Timestamp) -> Option<(Timestamp, Timer)> {
        if self.first? > now {
            return None;
        }
        let due = self.set.pop_first();
        self.first = self.set.first().map(|(at, _)| *at);
        due
    }

    pub(super) fn contains(&self, timer: &(Timestamp, Timer)) -> bool {
        self.set.contains(timer)
    }

    /// All of them, the earliest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Timestamp, Timer)> {
        self.set.iter()
    }
}

impl Engine {
    /// Everything that is due, in the order of its time.
    pub(super) fn run_timers(&mut self, now: Timestamp, out: &mut Output) {
        while let Some((at, timer)) = self.timers.pop_due(now) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_is_known_whatever_comes_and_goes() {
        let mut timers = Timers::default();
        assert_eq!((timers.first(), timers.pop_due(Timestamp(9))), (None, None));
        for at in [5, 3, 7, 3] {
            timers.insert((Timestamp(at), Timer::States));
        }
        timers.insert((Timestamp(3), Timer::Parked));
        assert_eq!(timers.first(), Some(Timestamp(3)));
        timers.remove(&(Timestamp(3), Timer::States));
        assert_eq!(timers.first(), Some(Timestamp(3)));
        timers.remove(&(Timestamp(3), Timer::Parked));
        timers.remove(&(Timestamp(4), Timer::Parked));
        assert_eq!(timers.first(), Some(Timestamp(5)));
        assert_eq!(timers.pop_due(Timestamp(4)), None);
        assert_eq!(timers.pop_due(Timestamp(5)), Some((Timestamp(5), Timer::States)));
        assert_eq!((timers.first(), timers.iter().count()), (Some(Timestamp(7)), 1));
    }
}
