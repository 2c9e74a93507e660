//! Reservations.

use std::sync::Arc;

use plimsoll_engine::rows::{ReservationRow, ReservationState};
use plimsoll_types::{Mib, Vcpus};

use super::{Binder, Cells, SqlRow};
use crate::error::StoreError;

const STATES: [ReservationState; 4] = [
    ReservationState::Reserved,
    ReservationState::Committed,
    ReservationState::Released,
    ReservationState::Expired,
];

impl SqlRow for ReservationRow {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "tenant",
        "key",
        "body_hash",
        "state",
        "pool",
        "host",
        "memory_mib",
        "vcpus",
        "stateful",
        "charge_mib",
        "generation",
        "cgroup",
        "created_at_millis",
        "expires_at_millis",
        "ended_at_millis",
        "decision_id",
        "meter",
    ];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self {
            id,
            tenant,
            key,
            body_hash,
            state,
            pool,
            host,
            memory_mib,
            vcpus,
            stateful,
            charge_mib,
            generation,
            cgroup,
            created_at,
            expires_at,
            ended_at,
            decision_id,
            meter,
        } = self;
        to.id(id)?;
        to.text(tenant.as_str())?;
        to.text(key)?;
        to.uint(*body_hash)?;
        to.text(state.as_str())?;
        to.text(pool.as_str())?;
        to.text(host.as_str())?;
        to.uint(memory_mib.get())?;
        to.uint(vcpus.get())?;
        to.flag(*stateful)?;
        to.uint(charge_mib.get())?;
        to.uint(*generation)?;
        to.maybe_text(cgroup.as_deref())?;
        to.time(*created_at)?;
        to.time(*expires_at)?;
        to.maybe_time(*ended_at)?;
        to.id(decision_id)?;
        to.json_unless(meter.is_unused(), meter)
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self {
            id: cells.parse()?,
            tenant: cells.name()?,
            key: Arc::from(cells.text()?),
            body_hash: cells.uint()?,
            state: cells.word(&STATES, ReservationState::as_str)?,
            pool: cells.name()?,
            host: cells.name()?,
            memory_mib: Mib(cells.uint()?),
            vcpus: Vcpus(cells.uint()?),
            stateful: cells.flag()?,
            charge_mib: Mib(cells.uint()?),
            generation: cells.uint()?,
            cgroup: cells.maybe_text()?.map(Arc::from),
            created_at: cells.time()?,
            expires_at: cells.time()?,
            ended_at: cells.maybe_time()?,
            decision_id: cells.parse()?,
            meter: cells.json_or_default()?,
        })
    }
}
