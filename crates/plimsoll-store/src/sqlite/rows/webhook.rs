//! Webhook endpoints and delivery attempts.

use plimsoll_engine::rows::EndpointRow;
use plimsoll_types::TenantId;

use super::{Binder, Cells, SqlRow};
use crate::delivery::{DeliveryOutcome, DeliveryRow};
use crate::error::StoreError;

impl SqlRow for EndpointRow {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "tenant",
        "url",
        "events",
        "description",
        "secrets",
        "disabled",
        "created_at_millis",
        "cursor",
        "failing_since_at_millis",
    ];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self {
            id,
            tenant,
            url,
            events,
            description,
            secrets,
            disabled,
            created_at,
            cursor,
            failing_since,
        } = self;
        to.id(id)?;
        to.maybe_text(tenant.as_ref().map(TenantId::as_str))?;
        to.text(url)?;
        to.json(events)?;
        to.text(description)?;
        to.json(secrets)?;
        to.maybe_text(disabled.as_deref())?;
        to.time(*created_at)?;
        to.id(cursor)?;
        to.maybe_time(*failing_since)
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self {
            id: cells.parse()?,
            tenant: cells.maybe_name()?,
            url: cells.text()?.to_owned(),
            events: cells.json()?,
            description: cells.text()?.to_owned(),
            secrets: cells.json()?,
            disabled: cells.maybe_text()?.map(str::to_owned),
            created_at: cells.time()?,
            cursor: cells.parse()?,
            failing_since: cells.maybe_time()?,
        })
    }
}

impl SqlRow for DeliveryRow {
    const COLUMNS: &'static [&'static str] = &[
        "endpoint",
        "event",
        "kind",
        "attempt",
        "attempted_at_millis",
        "duration_millis",
        "outcome",
        "status",
        "detail",
        "next_attempt_at_millis",
    ];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self {
            endpoint,
            event,
            kind,
            attempt,
            at,
            duration_millis,
            outcome,
            status,
            detail,
            next_attempt_at,
        } = self;
        to.id(endpoint)?;
        to.id(event)?;
        to.text(kind)?;
        to.int(i64::from(*attempt))?;
        to.time(*at)?;
        to.uint(*duration_millis)?;
        to.text(outcome.as_str())?;
        to.maybe_int(status.map(i64::from))?;
        to.maybe_text(detail.as_deref())?;
        to.maybe_time(*next_attempt_at)
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self {
            endpoint: cells.parse()?,
            event: cells.parse()?,
            kind: cells.text()?.to_owned(),
            attempt: cells.small()?,
            at: cells.time()?,
            duration_millis: cells.uint()?,
            outcome: cells.word(&DeliveryOutcome::ALL, DeliveryOutcome::as_str)?,
            status: cells.maybe_small()?,
            detail: cells.maybe_text()?.map(str::to_owned),
            next_attempt_at: cells.maybe_time()?,
        })
    }
}
