//! I8: nobody is refused for want of room on a word that is no longer true.

use plimsoll_engine::rows::{Change, Verb};
use plimsoll_engine::{Output, Reply};
use plimsoll_types::{Millis, RefusalCode, Timestamp};

use super::Oracle;

impl Oracle {
    /// I8, host by host: each host of the request's own pool that has been silent for too long, or
    /// since the cell took the lead, was asked a moment ago before anybody was refused for want of
    /// room.
    pub(super) fn refusals_are_fresh(&mut self, now: Timestamp, out: &Output) {
        let unprobed = out
            .replies
            .iter()
            .any(|(_, reply)| matches!(reply, Reply::Refused(refusal) if refusal.unprobed));
        let decided = out.changes.iter().find_map(|change| match change {
            Change::Decision(row) if row.object.is_none() && row.verb == Verb::Create => Some(row),
            _ => None,
        });
        // Only so many requests may wait for hosts to answer; beyond that a refusal says so.
        let Some(row) = decided.filter(|_| !(unprobed && self.parks_few)) else { return };
        let refused = row.code.is_some_and(|code| {
            code.is_capacity() && code != RefusalCode::Degraded && code != RefusalCode::Overloaded
        });
        let Some(pool) = row.pool.as_ref().filter(|_| refused) else { return };
        let Some(settings) = self.rows.pools.get(pool).map(|row| &row.settings) else { return };
        // Where every slot is held, or kept for a waiter, no host's word would change anything; nor
        // would that of a host that does not run such a thing at all, and which one that is the
        // rows do not tell.
        let unsuited = row.counts.filtered.labels + row.counts.filtered.driver;
        // A host's own refusal, passed on, counts no hosts.
        if settings.limit.is_some() || unsuited > 0 || row.counts.hosts == 0 {
            return;
        }
        let (stale, dead) = (
            Millis::from_seconds(settings.stale_seconds),
            Millis::from_seconds(settings.dead_seconds),
        );
        // One that was asked just before a request came is not asked for it again, and its answer
        // is older than the others' when they are in: the refusal says so too.
        let recently = if unprobed { Millis(10_000) } else { Millis(2_200) };
        // Likewise one that fell silent while the others were being asked.
        let stale = if unprobed { Millis(stale.0 + 3_000) } else { stale };
        let silent = self.rows.hosts.values().find(|host| {
            let age = now.since(self.heard.get(&host.id).copied().unwrap_or(self.led_at));
            let never = !self.heard.contains_key(&host.id);
            let asked = self.asked.get(&host.id);
            host.pool == *pool
                && !host.draining
                && host.address.is_some()
                && (never || age > stale)
                && age <= dead
                && asked.is_none_or(|at| now.since(*at) > recently)
        });
        if let Some(host) = silent {
            let detail = format!("{} refused while {} was silent and not asked", row.id, host.id);
            self.break_("I8", detail);
        }
    }
}
