//! I11: every event that is durable reaches every endpoint that wants it, under one id and with one
//! content, in order, until it is given up on after its last attempt or its endpoint is off.

use std::collections::BTreeMap;
use std::ops::Bound;

use plimsoll_engine::rows::{EndpointRow, EventRow};
use plimsoll_policy::delivery::{DeliveryRule, Off, Outcome};
use plimsoll_types::{EndpointId, EventId, Millis, TenantId, Timestamp};

use super::Oracle;
use crate::faults::table::Table;

/// How long an event may take to a receiver that is well, in a cell that is: a commit, a request,
/// and those before it.
const PROMPT: Millis = Millis::from_seconds(30);

/// Two clocks of one cell may differ by so much, from one process to the next.
const CLOCKS: Millis = Millis(4_000);

/// What one endpoint got.
#[derive(Clone, Debug, Default)]
struct Got {
    /// The last event that came for the first time.
    newest: Option<EventId>,
    /// Attempts at each event that have failed, and events that came.
    failures: BTreeMap<EventId, u32>,
    came: BTreeMap<EventId, (Timestamp, EventRow)>,
    /// Since when every attempt has failed, and whether its receiver said that it is gone.
    failing_since: Option<Timestamp>,
    gone: bool,
}

/// What all of them got.
#[derive(Debug, Default)]
pub(in crate::faults) struct Deliveries {
    got: BTreeMap<EndpointId, Got>,
    /// Where each endpoint began, and whose it is.
    began: BTreeMap<EndpointId, (EventId, Option<TenantId>)>,
    /// When a cursor behind each event that came was durable for the first time.
    confirmed: BTreeMap<EventId, Timestamp>,
}

impl Deliveries {
    /// When an event first came to an endpoint of this tenant's own, in the world's time.
    pub(super) fn came_to(&self, tenant: &TenantId, event: EventId) -> Option<Timestamp> {
        let own =
            |id: &EndpointId| self.began.get(id).is_some_and(|(_, of)| of.as_ref() == Some(tenant));
        let came = self.got.iter().filter(|(id, _)| own(id));
        came.filter_map(|(_, got)| got.came.get(&event)).map(|(at, _)| *at).min()
    }

    /// Since when the cell is known to know that an event came to its tenant.
    pub(super) fn confirmed(&self, event: EventId) -> Option<Timestamp> {
        self.confirmed.get(&event).copied()
    }

    /// An endpoint was made, or made otherwise.
    pub(super) fn endpoint(&mut self, row: &EndpointRow) {
        self.began.entry(row.id).or_insert((row.cursor, row.tenant.clone()));
    }

    /// An attempt has come out, as far as its sender can tell.
    pub(in crate::faults) fn attempted(
        &mut self,
        endpoint: EndpointId,
        event: EventId,
        at: Timestamp,
        outcome: Outcome,
    ) {
        let got = self.got.entry(endpoint).or_default();
        got.gone = outcome == Outcome::Gone;
        if outcome == Outcome::Taken {
            got.failing_since = None;
        } else {
            got.failing_since = got.failing_since.or(Some(at));
            *got.failures.entry(event).or_default() += 1;
        }
    }
}

/// Whether an endpoint is to hear of an event: written down here once more.
fn concerns(row: &EndpointRow, event: &EventRow) -> bool {
    let whose = match (&row.tenant, &event.tenant) {
        (None, _) => true,
        (Some(own), Some(of)) => own == of,
        (Some(_), None) => false,
    };
    whose && (row.events.is_empty() || row.events.contains(&event.kind))
}

impl Oracle {
    /// An event has come to a receiver.
    pub(in crate::faults) fn arrived(
        &mut self,
        now: Timestamp,
        table: &Table,
        endpoint: EndpointId,
        event: &EventRow,
    ) {
        let id = event.id;
        let durable = table.events.get(&id).is_some_and(|row| **row == *event);
        if !durable {
            return self.break_("I11", format!("{id} came to {endpoint} and is not durable"));
        }
        if table.endpoints.get(&endpoint).is_some_and(|row| !concerns(row, event)) {
            let detail = format!("{id} ({}) is none of {endpoint}'s concern", event.kind);
            return self.break_("I11", detail);
        }
        let got = self.deliveries.got.entry(endpoint).or_default();
        if let Some(before) = got.came.get(&id) {
            if before.1 != *event {
                self.break_("I11", format!("{id} came to {endpoint} as something else before"));
            }
            return;
        }
        if let Some(newest) = got.newest.filter(|newest| *newest > id) {
            let detail = format!("{id} came to {endpoint} for the first time after {newest}");
            return self.break_("I11", detail);
        }
        got.newest = Some(id);
        got.came.insert(id, (now, event.clone()));
    }

    /// Whether an endpoint may leave an event behind: it came, or its last attempt has failed.
    fn may_leave(&self, endpoint: EndpointId, event: EventId, rule: &DeliveryRule) -> bool {
        self.deliveries.got.get(&endpoint).is_some_and(|got| {
            let failures = got.failures.get(&event).copied().unwrap_or(0);
            got.came.contains_key(&event)
                || usize::try_from(failures).is_ok_and(|failures| failures > rule.waits.len())
        })
    }

    /// A cursor is about to be durable.
    pub(in crate::faults) fn deliveries_kept(
        &mut self,
        now: Timestamp,
        table: &Table,
        row: &EndpointRow,
        cursor: EventId,
        rule: &DeliveryRule,
    ) {
        let before = table.progress_of(row).cursor;
        if cursor <= before {
            return;
        }
        let passed = table.events.range((Bound::Excluded(before), Bound::Included(cursor)));
        for (id, event) in passed.clone() {
            let got = self.deliveries.got.get(&row.id);
            let own = row.tenant.is_some() && row.tenant == event.tenant;
            if own && got.is_some_and(|got| got.came.contains_key(id)) {
                self.deliveries.confirmed.entry(*id).or_insert(now);
            }
        }
        let lost = passed
            .map(|(_, event)| event)
            .filter(|event| concerns(row, event))
            .find(|event| !self.may_leave(row.id, event.id, rule));
        if let Some(event) = lost {
            let detail = format!(
                "{} has passed {} ({}), which neither came nor was given up on",
                row.id, event.id, event.kind
            );
            self.break_("I11", detail);
        }
    }

    /// The cell is about to switch an endpoint off.
    pub(in crate::faults) fn switched_off(
        &mut self,
        endpoint: EndpointId,
        off: Off,
        now: Timestamp,
        rule: &DeliveryRule,
    ) {
        let got = self.deliveries.got.get(&endpoint);
        let holds = match off {
            Off::Gone => got.is_some_and(|got| got.gone),
            Off::Failing => got
                .and_then(|got| got.failing_since)
                .is_some_and(|since| now.since(since).0 + CLOCKS.0 >= rule.failing_max.0),
        };
        if !holds {
            self.break_("I11", format!("{endpoint} is switched off ({off:?}) for no reason"));
        }
    }

    /// An endpoint with a receiver that is well, and not waiting for its next attempt, has nothing
    /// before it that is older than a moment.
    pub(in crate::faults) fn held_up(&mut self, table: &Table, row: &EndpointRow, now: Timestamp) {
        // One that catches up with what came before takes its time.
        let got = self.deliveries.got.get(&row.id);
        let last = got.and_then(|got| got.came.values().map(|(at, _)| *at).max());
        let busy = last.is_some_and(|at| now.since(at).0 < PROMPT.0 - CLOCKS.0);
        if row.disabled.is_some() || busy {
            return;
        }
        let after = (Bound::Excluded(table.progress_of(row).cursor), Bound::Unbounded);
        let late = table.events.range(after).map(|(_, event)| event).find(|event| {
            concerns(row, event)
                && now.since(event.at) > PROMPT
                && !self
                    .deliveries
                    .got
                    .get(&row.id)
                    .is_some_and(|got| got.came.contains_key(&event.id))
        });
        if let Some(event) = late {
            let age = now.since(event.at).0;
            let detail = format!("{} still waits for {} after {age} ms", row.id, event.id);
            self.break_("I11", detail);
        }
    }

    /// All is mended: whatever an endpoint was to hear has come or was given up on.
    pub(in crate::faults) fn all_delivered(
        &mut self,
        table: &Table,
        now: Timestamp,
        rule: &DeliveryRule,
    ) {
        for row in table.endpoints.values().filter(|row| row.disabled.is_none()) {
            let began = self.deliveries.began.get(&row.id).map_or(row.cursor, |began| began.0);
            let after = (Bound::Excluded(began), Bound::Unbounded);
            let missing = table.events.range(after).map(|(_, event)| event).find(|event| {
                concerns(row, event)
                    && now.since(event.at) > PROMPT
                    && !self.may_leave(row.id, event.id, rule)
            });
            if let Some(event) = missing {
                let detail = format!("{} never heard of {} ({})", row.id, event.id, event.kind);
                return self.break_("I11", detail);
            }
        }
    }
}
