//! External pools: providers that are asked rather than heard of, what they turn out to take, and
//! guests that an operator ends by name.
//!
//! A provider is a host like any other that serves the agent's guest API (another agent, or an
//! adapter before something else) and sends no reports of its own: an operator says where it is
//! and what to show it, and the cell asks it for its report. Everything else is as with any host.

use plimsoll_policy::learned::Learned;
use plimsoll_types::{
    HostCommand, HostId, HostOp, HostOutcome, HostReport, Millis, RefusalCode, SandboxId, Timestamp,
};
use serde_json::json;

use super::Engine;
use super::fleet::new_host_row;
use super::state::{Ix, Timer};
use crate::command::EnrolProvider;
use crate::output::{Effect, Output, Refusal};
use crate::rows::Change;

/// How often a provider is asked for its report at least: as often as an agent sends one.
const POLL_MAX: Millis = Millis::from_seconds(10);
/// And so many times within the time after which it counts as stale: one answer may be lost.
const POLLS_PER_STALE: u64 = 3;
/// But not more often than this.
const POLL_MIN: Millis = Millis(500);

impl Engine {
    /// Most slots of a pool: what the operator allows, and what its provider was seen to take.
    pub(super) fn slot_limit(&self, pool: Ix) -> Option<u64> {
        let state = &self.pools[pool];
        let learned = state.learned.map(|learned| learned.limit);
        [state.row.settings.limit, learned].into_iter().flatten().min()
    }

    fn is_external(&self, pool: Ix) -> bool {
        self.pools[pool].row.settings.external
    }

    /// Whether a refusal tells of the provider's capacity, from which its limit is learned. One
    /// about its pace or its health says nothing about how much it takes.
    pub(super) fn teaches(&self, pool: Ix, code: RefusalCode) -> bool {
        self.is_external(pool)
            && matches!(code, RefusalCode::NoCapacity | RefusalCode::QuotaExceeded)
    }

    /// The provider has refused one that holds a slot at this moment.
    pub(super) fn learn_refused(&mut self, now: Timestamp, pool: Ix) {
        let state = &mut self.pools[pool];
        let learned = Learned::refused(state.learned, state.held.saturating_sub(1), now);
        state.learned = Some(learned);
        self.timers.insert((learned.next(), Timer::Queue(pool)));
    }

    /// The provider has taken one, which holds a slot.
    pub(super) fn learn_took(&mut self, now: Timestamp, pool: Ix) {
        let state = &mut self.pools[pool];
        let held = state.held;
        if let Some(learned) = &mut state.learned {
            learned.took(held, now);
            let next = learned.next();
            self.timers.insert((next, Timer::Queue(pool)));
        }
    }

    /// Tries one more after a while; what the operator allows anyway need not be learned.
    pub(super) fn relearn(&mut self, now: Timestamp, pool: Ix) {
        let state = &mut self.pools[pool];
        let Some(mut learned) = state.learned else { return };
        learned.advance(now);
        let allowed = state.row.settings.limit.is_some_and(|limit| learned.limit >= limit);
        if allowed || !state.row.settings.external {
            state.learned = None;
            return;
        }
        state.learned = Some(learned);
        self.timers.insert((learned.next(), Timer::Queue(pool)));
    }

    fn is_provider(&self, ix: Ix) -> bool {
        let host = &self.hosts[ix];
        self.is_external(host.pool) && host.row.secret.is_some()
    }

    /// What a provider says of its own place does not count: an operator has said where it stands.
    pub(super) fn place_provider(&self, report: &mut HostReport) {
        let Some(ix) = self.host_by_name(&report.host).filter(|ix| self.is_provider(*ix)) else {
            return;
        };
        let row = &self.hosts[ix].row;
        report.pool = row.pool.clone();
        report.address.clone_from(&row.address);
        report.incarnation = None;
    }

    /// Asks a provider for its report when its last word, or the last question, is old enough.
    pub(super) fn poll(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        if !self.is_provider(ix) {
            return;
        }
        let host = &self.hosts[ix];
        let last = host.report.as_ref().map(|seen| seen.at).max(host.asked_at);
        let stale = Millis::from_seconds(self.pools[host.pool].row.settings.stale_seconds);
        let period = Millis(stale.0 / POLLS_PER_STALE).clamp(POLL_MIN, POLL_MAX);
        let due = last.map_or(now, |last| last + period);
        if due > now {
            self.timers.insert((due, Timer::Host(ix)));
            return;
        }
        self.ask(now, ix, out);
        self.timers.insert((now + period, Timer::Host(ix)));
    }

    /// Sends a host a fresh question.
    pub(super) fn ask(&mut self, now: Timestamp, ix: Ix, out: &mut Output) -> bool {
        let timeout = self.config.probe_timeout;
        let host = &mut self.hosts[ix];
        let Some(address) = host.row.address.clone() else { return false };
        host.asking = true;
        host.asked_at = Some(now);
        out.effects.push(Effect::ProbeHost {
            host: host.row.id.clone(),
            address,
            secret: host.row.secret.clone(),
            timeout,
        });
        true
    }

    /// Takes a provider in, or says anew where it is.
    pub(super) fn put_provider(
        &mut self,
        now: Timestamp,
        provider: EnrolProvider,
        out: &mut Output,
    ) -> Result<(), Refusal> {
        let EnrolProvider { id, pool, address, secret } = provider;
        let pool_ix = self.pool_ix.get(&pool).copied().ok_or_else(|| self.unknown_pool(&pool))?;
        if !self.is_external(pool_ix) {
            let detail = format!("pool: {pool} is not external; its hosts enrol by themselves");
            let mut refusal = Refusal::new(RefusalCode::InvalidRequest, detail);
            refusal.field = Some(("pool", "a pool with external: true".to_owned()));
            return Err(refusal);
        }
        let ix = match self.host_by_name(&id) {
            Some(ix) if self.hosts[ix].pool != pool_ix => {
                let detail = format!("host {id} is of pool {}", self.hosts[ix].row.pool);
                return Err(Refusal::new(RefusalCode::Conflict, detail));
            }
            Some(ix) => ix,
            None => {
                let row = new_host_row(id, pool, now);
                self.enrol(now, row, pool_ix, out)
            }
        };
        let host = &mut self.hosts[ix];
        host.row.address = Some(address);
        host.row.secret = Some(secret);
        host.asked_at = None;
        out.changes.push(Change::Host(host.row.clone()));
        self.check_host(now, ix, out);
        Ok(())
    }

    /// Ends a guest that a host has and should not have. Whether it is gone, its next report says.
    pub(super) fn end_unexpected(
        &mut self,
        now: Timestamp,
        host: &HostId,
        guest: &str,
        out: &mut Output,
    ) -> Result<(), Refusal> {
        let missing = |detail: String| Refusal::new(RefusalCode::NotFound, detail);
        let ix = self.host_by_name(host).ok_or_else(|| missing(format!("no host {host}")))?;
        if !self.hosts[ix].unexpected.iter().any(|name| name == guest) {
            let detail = format!("host {host} has reported no unexpected guest {guest:?}");
            return Err(missing(detail));
        }
        let (id, attempt) = match guest.split_once('.') {
            Some((id, attempt)) => (id, attempt.parse().ok()),
            None => (guest, Some(1)),
        };
        let (Ok(id), Some(attempt)) = (id.parse::<SandboxId>(), attempt) else {
            let detail = format!("{guest:?} is no sandbox: whoever started it has to end it");
            return Err(Refusal::new(RefusalCode::Conflict, detail));
        };
        let timeout = self.config.terminate_timeout;
        self.send(now, ix, HostOp::End { id, attempt }, timeout, Millis::ZERO, out);
        let data = json!({ "host": host, "guest": guest });
        self.event(now, "host.unexpected_guest_ended", None, data, out);
        Ok(())
    }

    /// The end of a guest without a record came under a number below those that its host has seen,
    /// as after a store that was put back from a copy: once more, under a number above them.
    pub(super) fn end_stranger_again(
        &mut self,
        now: Timestamp,
        host: Ix,
        command: &HostCommand,
        outcome: &HostOutcome,
        out: &mut Output,
    ) {
        let HostOutcome::Fenced { highest } = outcome else { return };
        let was_too_low = command.fence.number <= highest.number
            && highest.epoch <= self.epoch
            && self.hosts[host].next_number >= highest.number;
        if was_too_low && matches!(command.op, HostOp::End { .. }) {
            let timeout = self.config.terminate_timeout;
            self.send(now, host, command.op.clone(), timeout, Millis::ZERO, out);
        }
    }
}
