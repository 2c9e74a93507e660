//! The readers' side.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLockReadGuard};

use plimsoll_engine::SandboxFilter;
use plimsoll_engine::rows::{DecisionRow, ReservationRow, SandboxRow};
use plimsoll_types::{
    DecisionId, EndpointId, EventId, ReservationId, SandboxId, TenantId, Timestamp,
};

use super::{Shared, Tables};
use crate::delivery::{DeliveryPage, Progress};
use crate::error::StoreError;
use crate::query::{
    DecisionPage, DecisionQuery, EXAMINED_MAX, EventPage, EventQuery, SandboxPage, UsageDay,
    UsagePage, UsageQuery, UsageTotal, page_limit, sandbox_matches,
};
use crate::store::{Reader, StoreStatus};
use crate::usage::{USAGE_EXAMINED_MAX, day_of};

pub(super) struct MemoryReader {
    pub(super) shared: Arc<Shared>,
}

impl MemoryReader {
    fn tables(&self) -> RwLockReadGuard<'_, Tables> {
        self.shared.tables.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn after<K>(key: Option<K>) -> (Bound<K>, Bound<K>) {
    (key.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

fn before<K>(key: Option<K>) -> (Bound<K>, Bound<K>) {
    (Bound::Unbounded, key.map_or(Bound::Unbounded, Bound::Excluded))
}

impl Reader for MemoryReader {
    fn decision(&self, id: DecisionId) -> Result<Option<DecisionRow>, StoreError> {
        Ok(self.tables().decisions.get(&id).cloned())
    }

    fn decisions(&self, query: &DecisionQuery) -> Result<DecisionPage, StoreError> {
        let limit = page_limit(query.limit);
        let tables = self.tables();
        let mut page = DecisionPage::default();
        let mut rows = tables.decisions.range(before(query.before)).rev();
        for (examined, (id, row)) in rows.by_ref().enumerate() {
            if query.ends_at(row.at) {
                return Ok(page);
            }
            if query.matches(row) {
                page.items.push(row.clone());
            }
            if page.items.len() == limit || examined + 1 == EXAMINED_MAX {
                page.next = rows.next().map(|_| *id);
                break;
            }
        }
        Ok(page)
    }

    fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        let limit = page_limit(query.limit);
        let tables = self.tables();
        let mut page = EventPage::default();
        let mut rows = tables.events.range(after(query.after));
        for (examined, (id, row)) in rows.by_ref().enumerate() {
            page.through = Some(*id);
            if query.tenant.is_none() || row.tenant == query.tenant {
                page.items.push(row.clone());
            }
            if page.items.len() == limit || examined + 1 == EXAMINED_MAX {
                page.more = rows.next().is_some();
                break;
            }
        }
        Ok(page)
    }

    fn last_event(&self) -> Result<Option<EventId>, StoreError> {
        Ok(self.tables().events.last_key_value().map(|(id, _)| *id))
    }

    fn sandbox(&self, id: SandboxId) -> Result<Option<SandboxRow>, StoreError> {
        Ok(self.tables().sandboxes.get(id).cloned())
    }

    fn reservation(&self, id: ReservationId) -> Result<Option<ReservationRow>, StoreError> {
        Ok(self.tables().reservations.get(id).cloned())
    }

    fn sandboxes_ended(&self, filter: &SandboxFilter) -> Result<SandboxPage, StoreError> {
        let limit = page_limit(filter.limit);
        let tables = self.tables();
        let mut page = SandboxPage::default();
        let mut rows = tables.sandboxes.ended.range(after(filter.after));
        for (examined, (id, (_, row))) in rows.by_ref().enumerate() {
            if sandbox_matches(filter, row) {
                page.items.push(row.clone());
            }
            if page.items.len() == limit || examined + 1 == EXAMINED_MAX {
                page.next = rows.next().map(|_| *id);
                break;
            }
        }
        Ok(page)
    }

    fn usage(&self, query: &UsageQuery) -> Result<UsagePage, StoreError> {
        let limit = page_limit(query.limit);
        let tables = self.tables();
        let mut totals: BTreeMap<String, UsageTotal> = BTreeMap::new();
        let rows = tables.usage_rows(&query.tenant, query.from, query.to);
        for (examined, row) in rows.enumerate() {
            if examined == USAGE_EXAMINED_MAX {
                return Err(StoreError::TooWide { what: "usage", rows_max: USAGE_EXAMINED_MAX });
            }
            totals
                .entry(Tables::claim_order(row.claim))
                .or_insert_with(|| UsageTotal::of(row.claim))
                .add(row);
        }
        let after = query.after.map(Tables::claim_order);
        let mut rest =
            totals.into_iter().skip_while(|(key, _)| after.as_ref().is_some_and(|at| key <= at));
        let items: Vec<UsageTotal> = rest.by_ref().take(limit).map(|(_, total)| total).collect();
        let next = rest.next().and(items.last()).map(|total| total.claim);
        Ok(UsagePage { items, next })
    }

    fn usage_by_day(
        &self,
        tenant: &TenantId,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<UsageDay>, StoreError> {
        let tables = self.tables();
        let mut days: BTreeMap<Timestamp, UsageDay> = BTreeMap::new();
        for (examined, row) in tables.usage_rows(tenant, from, to).enumerate() {
            if examined == USAGE_EXAMINED_MAX {
                return Err(StoreError::TooWide { what: "usage", rows_max: USAGE_EXAMINED_MAX });
            }
            let day = day_of(row.hour);
            days.entry(day).or_insert_with(|| UsageDay::of(day)).add(row);
        }
        Ok(days.into_values().collect())
    }

    fn deliveries(
        &self,
        endpoint: EndpointId,
        older_than: Option<u64>,
        limit: usize,
    ) -> Result<DeliveryPage, StoreError> {
        let tables = self.tables();
        let mut rows = tables
            .deliveries
            .range(before(older_than))
            .rev()
            .filter(|(_, row)| row.endpoint == endpoint);
        let mut page = DeliveryPage::default();
        let mut last = None;
        for (place, row) in rows.by_ref().take(page_limit(limit)) {
            page.items.push(row.clone());
            last = Some(*place);
        }
        page.next = rows.next().and(last);
        Ok(page)
    }

    fn progress(&self) -> Result<Vec<Progress>, StoreError> {
        let rows = self
            .tables()
            .endpoints
            .values()
            .map(|row| Progress {
                endpoint: row.id,
                cursor: row.cursor,
                failing_since: row.failing_since,
            })
            .collect();
        Ok(rows)
    }

    fn status(&self) -> Result<StoreStatus, StoreError> {
        let tables = self.tables();
        Ok(StoreStatus {
            backend: "memory",
            epoch: tables.lease.epoch,
            holder: tables.lease.holder.clone(),
            bytes: None,
            log_bytes: None,
        })
    }
}
