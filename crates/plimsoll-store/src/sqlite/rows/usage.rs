//! Metered use. Hours and days have the same columns under another name for the first, so both
//! are written and read by place.

use plimsoll_engine::rows::UsageRow;

use super::{Binder, Cells, SqlRow};
use crate::error::StoreError;

impl SqlRow for UsageRow {
    const COLUMNS: &'static [&'static str] = &[
        "hour_at_millis",
        "tenant",
        "claim",
        "cpu_millis",
        "charged_mib_millis",
        "resident_mib_millis",
        "egress_bytes",
    ];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self {
            tenant,
            claim,
            hour,
            cpu_millis,
            charged_mib_millis,
            resident_mib_millis,
            egress_bytes,
        } = self;
        to.time(*hour)?;
        to.text(tenant.as_str())?;
        to.id(claim)?;
        to.uint(*cpu_millis)?;
        to.uint(*charged_mib_millis)?;
        to.uint(*resident_mib_millis)?;
        to.uint(*egress_bytes)
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self {
            hour: cells.time()?,
            tenant: cells.name()?,
            claim: cells.parse()?,
            cpu_millis: cells.uint()?,
            charged_mib_millis: cells.uint()?,
            resident_mib_millis: cells.uint()?,
            egress_bytes: cells.uint()?,
        })
    }
}
