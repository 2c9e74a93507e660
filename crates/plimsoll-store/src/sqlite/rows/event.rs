//! Events.

use plimsoll_engine::rows::EventRow;
use plimsoll_types::TenantId;

use super::{Binder, Cells, SqlRow};
use crate::error::StoreError;

impl SqlRow for EventRow {
    const COLUMNS: &'static [&'static str] =
        &["id", "happened_at_millis", "kind", "tenant", "data"];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self { id, at, kind, tenant, data } = self;
        to.id(id)?;
        to.time(*at)?;
        to.text(kind)?;
        to.maybe_text(tenant.as_ref().map(TenantId::as_str))?;
        to.json(data)
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self {
            id: cells.parse()?,
            at: cells.time()?,
            kind: cells.text()?.to_owned(),
            tenant: cells.maybe_name()?,
            data: cells.json()?,
        })
    }
}
