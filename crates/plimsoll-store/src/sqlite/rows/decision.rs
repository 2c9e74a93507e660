//! Decisions.

use std::sync::Arc;

use plimsoll_engine::rows::{DecisionRow, Verb};
use plimsoll_types::{FilterCounts, HostFilter, HostId, Mib, PoolName, RefusalCode, Vcpus};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{Binder, Cells, SqlRow};
use crate::error::StoreError;

const VERBS: [Verb; 5] =
    [Verb::Create, Verb::Fork, Verb::Resume, Verb::Reserve, Verb::ReserveBatch];

/// Counts as JSON without the filters that no host fell to.
struct Sparse<'a>(&'a FilterCounts);

impl Serialize for Sparse<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("hosts", &self.0.hosts)?;
        map.serialize_entry("candidates", &self.0.candidates)?;
        for filter in HostFilter::ALL {
            let count = self.0.of(filter);
            if count > 0 {
                map.serialize_entry(filter.as_str(), &count)?;
            }
        }
        map.end()
    }
}

impl SqlRow for DecisionRow {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "decided_at_millis",
        "tenant",
        "verb",
        "code",
        "object",
        "pool",
        "host",
        "memory_mib",
        "vcpus",
        "stateful",
        "charge_mib",
        "items",
        "policy_version",
        "policy_mode",
        "counts",
        "slots_held",
        "slots_limit",
        "detail",
    ];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self {
            id,
            at,
            tenant,
            verb,
            code,
            object,
            pool,
            host,
            memory_mib,
            vcpus,
            stateful,
            charge_mib,
            items,
            policy_version,
            policy_mode,
            counts,
            slots,
            detail,
        } = self;
        to.id(id)?;
        to.time(*at)?;
        to.text(tenant.as_str())?;
        to.text(verb.as_str())?;
        to.maybe_text(code.map(RefusalCode::as_str))?;
        to.maybe_id(object.as_ref())?;
        to.maybe_text(pool.as_ref().map(PoolName::as_str))?;
        to.maybe_text(host.as_ref().map(HostId::as_str))?;
        to.uint(memory_mib.get())?;
        to.uint(vcpus.get())?;
        to.flag(*stateful)?;
        to.uint(charge_mib.get())?;
        to.int(i64::from(*items))?;
        to.uint(*policy_version)?;
        to.text(policy_mode.as_str())?;
        to.json_unless(*counts == FilterCounts::default(), &Sparse(counts))?;
        to.maybe_uint(slots.map(|(held, _)| held))?;
        to.maybe_uint(slots.and_then(|(_, limit)| limit))?;
        to.maybe_text(detail.as_deref())
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self {
            id: cells.parse()?,
            at: cells.time()?,
            tenant: cells.name()?,
            verb: cells.word(&VERBS, Verb::as_str)?,
            code: cells.maybe_parse()?,
            object: cells.maybe_parse()?,
            pool: cells.maybe_name()?,
            host: cells.maybe_name()?,
            memory_mib: Mib(cells.uint()?),
            vcpus: Vcpus(cells.uint()?),
            stateful: cells.flag()?,
            charge_mib: Mib(cells.uint()?),
            items: cells.small()?,
            policy_version: cells.uint()?,
            policy_mode: cells.parse()?,
            counts: cells.json_or_default()?,
            slots: {
                let (held, limit) = (cells.maybe_uint()?, cells.maybe_uint()?);
                held.map(|held| (held, limit))
            },
            detail: cells.maybe_text()?.map(Arc::from),
        })
    }
}
