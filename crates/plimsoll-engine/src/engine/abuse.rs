//! Abuse by shape: what is counted, when it is looked at, and what is done.
//!
//! The shape is the policy's to judge ([`plimsoll_policy::abuse`]). A tenant is looked at when a
//! guest of it has kept all its cores busy for an hour or more, when it gives back within a minute
//! what it makes, and, in its first day, when it has made many requests.

use plimsoll_policy::abuse::{Score, Signs, score};
use plimsoll_types::{Millis, SandboxStatus, TenantId, Timestamp};
use serde_json::json;

use super::Engine;
use super::state::{Claim, Ix};
use crate::config::AbuseAct;
use crate::output::Output;
use crate::rows::{Change, PausedBy};

/// What is given back sooner than this was made for nothing.
const SHORT_LIFE: Millis = Millis::from_seconds(60);

/// Cores that were busy for less than this say nothing yet.
const FULL_FROM: Millis = Millis::from_seconds(3600);

/// Signs of a tenant change by the minute; more often it is not looked at.
const LOOK_INTERVAL: Millis = Millis::from_seconds(60);

/// An account is young for so long: only then do its requests count.
const YOUNG: Millis = Millis::from_seconds(24 * 3600);

impl Engine {
    /// A guest's use of its cores has been averaged anew.
    pub(super) fn shape_moved(&mut self, now: Timestamp, claim: Claim, out: &mut Output) {
        let tenant = match claim {
            Claim::Sandbox(ix) => self.sandboxes[ix].tenant,
            Claim::Reservation(ix) => self.reservations[ix].tenant,
        };
        let suspected = self.tenants[tenant]
            .account
            .as_ref()
            .is_some_and(|account| account.shape.suspected_at.is_some());
        if self.busy_for(now, claim) >= FULL_FROM || suspected {
            self.look_at(now, tenant, out);
        }
    }

    /// A caller gives back what was made at `created_at`.
    pub(super) fn given_back(
        &mut self,
        now: Timestamp,
        tenant: Ix,
        created_at: Timestamp,
        out: &mut Output,
    ) {
        if now.since(created_at) < SHORT_LIFE && !self.tenants[tenant].row().payment_method {
            self.tenants[tenant].account_at(now).shape.loops.count(now);
            self.look_at(now, tenant, out);
        }
    }

    /// Requests that tenants have made.
    pub(super) fn count_requests(
        &mut self,
        now: Timestamp,
        counts: &[(TenantId, u64)],
        out: &mut Output,
    ) {
        for (tenant, count) in counts {
            let Some(ix) = self.tenant_named(tenant) else { continue };
            if now.since(self.tenants[ix].row().created_at) < YOUNG {
                let shape = &mut self.tenants[ix].account_at(now).shape;
                shape.requests = shape.requests.saturating_add(*count);
                self.write_soon(now, ix);
                self.look_at(now, ix, out);
            }
        }
    }

    fn signs(&self, now: Timestamp, ix: Ix) -> Signs {
        let tenant = &self.tenants[ix];
        let shape = tenant.account.as_ref().map_or_else(Default::default, |account| account.shape);
        let longest = tenant.claims.iter().map(|claim| self.busy_for(now, *claim)).max();
        Signs {
            account_age: now.since(tenant.row().created_at),
            payment_method_ever: tenant.row().payment_method_ever,
            full_core: longest.unwrap_or(Millis::ZERO),
            create_delete_loops: shape.loops.seen(now),
            requests: shape.requests,
        }
    }

    /// Judges a tenant by its shape. A suspicion is one episode: it is said, and acted upon, when
    /// it begins, and ends when the shape is no longer suspect.
    fn look_at(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let shape = &mut self.tenants[ix].account_at(now).shape;
        if now.since(shape.looked_at) < LOOK_INTERVAL {
            return;
        }
        shape.looked_at = now;
        let before = shape.suspected_at;
        let signs = self.signs(now, ix);
        let score = score(&signs);
        if score.is_suspect() == before.is_some() {
            return;
        }
        let shape = &mut self.tenants[ix].account_at(now).shape;
        shape.suspected_at = score.is_suspect().then_some(now);
        if score.is_suspect() {
            self.suspect(now, ix, &signs, &score, out);
        }
        self.write_state(now, ix, out);
    }

    fn suspect(&mut self, now: Timestamp, ix: Ix, signs: &Signs, score: &Score, out: &mut Output) {
        let act = self.config.abuse;
        let acts = act != AbuseAct::Nothing
            && !self.tenants[ix].row().payment_method
            && !self.tenants[ix].suspended;
        let terms: serde_json::Map<String, serde_json::Value> = score
            .terms()
            .into_iter()
            .map(|(name, points)| (name.to_owned(), points.into()))
            .collect();
        let data = json!({
            "tenant": self.tenants[ix].row().id,
            "score": score.total(),
            "terms": terms,
            "full_core_seconds": signs.full_core.0 / 1000,
            "create_delete_loops": signs.create_delete_loops,
            "requests": signs.requests,
            "account_age_seconds": signs.account_age.0 / 1000,
            "payment_method_ever": signs.payment_method_ever,
            "act": match act {
                AbuseAct::StopAdmitting if acts => "stop_admitting",
                AbuseAct::Pause if acts => "pause",
                _ => "nothing",
            },
        });
        // For operators alone: who is watched is not told what is looked at.
        self.event(now, "abuse.suspected", None, data, out);
        if !acts {
            return;
        }
        let tenant = &mut self.tenants[ix];
        tenant.account_at(now).shape.acted = true;
        tenant.suspend(Some(format!("suspected of abuse, score {}", score.total())));
        out.changes.push(Change::Tenant(tenant.row().clone()));
        if act == AbuseAct::Pause {
            let running: Vec<Ix> = self
                .sandboxes_of(ix)
                .filter(|ix| self.sandboxes[*ix].row.status == SandboxStatus::Running)
                .collect();
            for sandbox in running {
                self.pause_for(now, sandbox, PausedBy::Abuse, out);
            }
        }
    }

    /// A tenant's row has changed: a payment method lifts what the cell itself has done, and
    /// whoever is suspended no more gets back what was paused for that.
    pub(super) fn abuse_reviewed(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let tenant = &mut self.tenants[ix];
        if !tenant.account.as_ref().is_some_and(|account| account.shape.acted) {
            return;
        }
        if tenant.row().payment_method {
            tenant.suspend(None);
        }
        if !tenant.suspended {
            tenant.account_at(now).shape.acted = false;
            self.resume_paused(now, ix, PausedBy::Abuse, out);
            self.stir_waiters_of(ix);
            self.write_state(now, ix, out);
        }
    }
}
