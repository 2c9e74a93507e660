//! Lifecycle limits: what is due, and what it does.

use plimsoll_policy::lifecycle::{Action, Facts, due, next_due, resolve};
use plimsoll_types::{Lifecycle, Millis, SandboxStatus, Timestamp};
use serde_json::json;

use super::Engine;
use super::state::Ix;
use crate::output::{Observation, Output};

/// How long after a pause that failed a limit may ask for another: as long as the shortest limit.
const PAUSE_AGAIN: Millis = Millis::from_seconds(60);

impl Engine {
    fn limit_facts(&self, ix: Ix) -> (plimsoll_policy::lifecycle::Limits, Facts) {
        let sandbox = &self.sandboxes[ix];
        let row = &sandbox.row;
        let of_pool = sandbox
            .pool
            .or(sandbox.home)
            .map_or_else(Lifecycle::default, |pool| self.pools[pool].row.settings.lifecycle);
        let cell = &self.config.lifecycle;
        let defaults = Lifecycle {
            idle_timeout_seconds: of_pool.idle_timeout_seconds.or(cell.idle_timeout_seconds),
            max_run_seconds: of_pool.max_run_seconds.or(cell.max_run_seconds),
            max_paused_seconds: of_pool.max_paused_seconds.or(cell.max_paused_seconds),
            ttl_seconds: of_pool.ttl_seconds.or(cell.ttl_seconds),
        };
        // A tenant that may resume nothing must not lose what it cannot keep alive: no pause
        // expires meanwhile, and each one's clock begins anew when new work is let in again.
        let account = self.tenants[sandbox.tenant].account.as_deref();
        let barred = account.is_some_and(|account| account.ladder.rung.refuses_new_work());
        let released = account.map_or(Timestamp(0), |account| account.released_at);
        let facts = Facts {
            status: row.status,
            created_at: row.created_at,
            running_since: row.started_at.unwrap_or(row.status_since),
            last_active_at: self.active_at(ix),
            at_rest_since: row.status_since.max(released),
            resume_requested: row.resume_requested_at.is_some() || barred,
            pause_failed_at: sandbox.rare().pause_failed_at,
        };
        (resolve(&row.spec.lifecycle, &defaults), facts)
    }

    /// When this sandbox's next limit falls due.
    pub(super) fn next_limit(&self, now: Timestamp, ix: Ix) -> Option<Timestamp> {
        let (limits, facts) = self.limit_facts(ix);
        next_due(&limits, &facts).map(|(at, action)| at.max(self.not_before(ix, action)).max(now))
    }

    /// Until when a limit that pauses leaves a guest alone whose pause has failed.
    fn not_before(&self, ix: Ix, action: Action) -> Timestamp {
        match self.sandboxes[ix].rare().pause_failed_at {
            Some(failed) if !action.deletes() => failed + PAUSE_AGAIN,
            _ => Timestamp(0),
        }
    }

    /// Does what is due.
    pub(super) fn enforce_limits(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let (limits, facts) = self.limit_facts(ix);
        let Some(action) = due(&limits, &facts, now) else { return };
        if now < self.not_before(ix, action) {
            return;
        }
        if let Some(pool) = self.sandboxes[ix].pool.or(self.sandboxes[ix].home) {
            let name = self.pools[pool].row.name.clone();
            out.observations.push(Observation::Lifecycle(action.as_str(), name));
        }
        match action {
            Action::ExpireTtl | Action::ExpirePaused => {
                let limit = if action == Action::ExpireTtl { "ttl" } else { "max_paused" };
                let field = format!("{limit}_seconds");
                self.sandbox_event(now, ix, "sandbox.expired", json!({ "limit": field }), out);
                self.terminate(now, ix, &format!("expired: {field}"), out);
            }
            Action::PauseMaxRun => {
                self.sandbox_event(now, ix, "sandbox.max_run", json!({}), out);
                self.begin_pause(now, ix, "paused: it ran for max_run_seconds", true, out);
            }
            Action::PauseIdle => {
                self.begin_pause(now, ix, "paused: idle for idle_timeout_seconds", true, out);
            }
        }
    }

    /// Sets every timer of a pool's sandboxes anew, after its defaults have changed.
    pub(super) fn rearm_pool(&mut self, now: Timestamp, pool: Ix) {
        for ix in self.sandboxes.numbers() {
            let sandbox = &self.sandboxes[ix];
            let here = sandbox.pool.or(sandbox.home) == Some(pool);
            if here && sandbox.row.status != SandboxStatus::Terminating {
                self.arm_sandbox(now, ix);
            }
        }
    }
}
