//! Sandboxes. Labels and key have columns of their own; the rest of what a start needs is one JSON
//! text, which leaves out what says nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_engine::rows::{PausedBy, SandboxRow, SandboxSpec};
use plimsoll_types::{Counted, Fence, Lifecycle, Mib, PoolName, SandboxId, Vcpus};
use serde::{Deserialize, Serialize};

use super::{Binder, Cells, SqlRow};
use crate::error::StoreError;

/// The part of a spec that has no column of its own.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SpecColumn<'a> {
    #[serde(skip_serializing_if = "no_words")]
    command: Held<'a, Vec<String>>,
    #[serde(skip_serializing_if = "no_pairs")]
    env: Held<'a, BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "no_counts")]
    counted: Held<'a, Counted>,
    #[serde(skip_serializing_if = "no_pairs")]
    host_labels: Held<'a, BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rootfs: Option<Held<'a, String>>,
    #[serde(skip_serializing_if = "is_false")]
    baked: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    requested_pool: Option<PoolName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fork_of: Option<SandboxId>,
    #[serde(skip_serializing_if = "no_limits")]
    lifecycle: Lifecycle,
}

/// Borrowed where it is written, owned where it is read.
type Held<'a, T> = std::borrow::Cow<'a, T>;

fn no_words(words: &[String]) -> bool {
    words.is_empty()
}

fn no_pairs(pairs: &BTreeMap<String, String>) -> bool {
    pairs.is_empty()
}

fn no_counts(counts: &Counted) -> bool {
    counts.is_empty()
}

fn no_limits(limits: &Lifecycle) -> bool {
    *limits == Lifecycle::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_false(flag: &bool) -> bool {
    !flag
}

fn bind_spec(spec: &SandboxSpec, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
    let SandboxSpec {
        command,
        env,
        counted,
        host_labels,
        rootfs,
        baked,
        requested_pool,
        fork_of,
        lifecycle,
    } = spec;
    let rest = SpecColumn {
        command: Held::Borrowed(command),
        env: Held::Borrowed(env),
        counted: Held::Borrowed(counted),
        host_labels: Held::Borrowed(host_labels),
        rootfs: rootfs.as_ref().map(Held::Borrowed),
        baked: *baked,
        requested_pool: requested_pool.clone(),
        fork_of: *fork_of,
        lifecycle: *lifecycle,
    };
    to.json(&rest)
}

fn read_spec(cells: &mut Cells<'_, '_>) -> Result<Arc<SandboxSpec>, StoreError> {
    let text = cells.text()?;
    if let Some(spec) = cells.shared.spec(text) {
        return Ok(spec);
    }
    let rest: SpecColumn<'static> = cells.json_of(text)?;
    let spec = Arc::new(SandboxSpec {
        command: rest.command.into_owned(),
        env: rest.env.into_owned(),
        counted: rest.counted.into_owned(),
        host_labels: rest.host_labels.into_owned(),
        rootfs: rest.rootfs.map(Held::into_owned),
        baked: rest.baked,
        requested_pool: rest.requested_pool,
        fork_of: rest.fork_of,
        lifecycle: rest.lifecycle,
    });
    cells.shared.hold_spec(text, &spec);
    Ok(spec)
}

impl SqlRow for SandboxRow {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "tenant",
        "template",
        "status",
        "reason",
        "status_since_at_millis",
        "pool",
        "host",
        "driver",
        "attempt",
        "fence_epoch",
        "fence_number",
        "memory_mib",
        "overhead_mib",
        "vcpus",
        "stateful",
        "priority",
        "preemptible",
        "criticality",
        "on_full",
        "slot_released",
        "idled",
        "resume_requested_at_millis",
        "brought_in_at_millis",
        "preempted_for",
        "queued_at_millis",
        "created_at_millis",
        "started_at_millis",
        "last_active_at_millis",
        "ended_at_millis",
        "exit_code",
        "charge_mib",
        "resident_mib",
        "measured",
        "decision_id",
        "body_hash",
        "paused_by",
        "meter",
        "key",
        "labels",
        "spec",
    ];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self {
            id,
            tenant,
            template,
            spec,
            key,
            labels,
            status,
            reason,
            status_since,
            pool,
            host,
            driver,
            attempt,
            fence,
            memory_mib,
            overhead_mib,
            vcpus,
            stateful,
            priority,
            preemptible,
            criticality,
            on_full,
            slot_released,
            idled,
            resume_requested_at,
            brought_in_at,
            preempted_for,
            queued_at,
            created_at,
            started_at,
            last_active_at,
            ended_at,
            exit_code,
            charge_mib,
            resident_mib,
            measured,
            decision_id,
            body_hash,
            paused_by,
            meter,
        } = self;
        to.id(id)?;
        to.text(tenant.as_str())?;
        to.text(template.as_str())?;
        to.text(status.as_str())?;
        to.maybe_text(reason.as_deref())?;
        to.time(*status_since)?;
        to.maybe_text(pool.as_ref().map(PoolName::as_str))?;
        to.maybe_text(host.as_ref().map(plimsoll_types::HostId::as_str))?;
        to.text(driver.as_str())?;
        to.int(i64::from(*attempt))?;
        to.uint(fence.epoch)?;
        to.uint(fence.number)?;
        to.uint(memory_mib.get())?;
        to.uint(overhead_mib.get())?;
        to.uint(vcpus.get())?;
        to.flag(*stateful)?;
        to.int(i64::from(*priority))?;
        to.flag(*preemptible)?;
        to.text(criticality.as_str())?;
        to.text(on_full.as_str())?;
        to.flag(*slot_released)?;
        to.flag(*idled)?;
        to.maybe_time(*resume_requested_at)?;
        to.maybe_time(*brought_in_at)?;
        to.maybe_id(preempted_for.as_ref())?;
        to.time(*queued_at)?;
        to.time(*created_at)?;
        to.maybe_time(*started_at)?;
        to.time(*last_active_at)?;
        to.maybe_time(*ended_at)?;
        to.maybe_int(exit_code.map(i64::from))?;
        to.uint(charge_mib.get())?;
        to.maybe_uint(resident_mib.map(Mib::get))?;
        to.flag(*measured)?;
        to.id(decision_id)?;
        to.uint(*body_hash)?;
        to.maybe_text(paused_by.map(PausedBy::as_str))?;
        to.json_unless(meter.is_unused(), meter)?;
        to.maybe_text(key.as_deref())?;
        to.json_unless(labels.is_empty(), labels)?;
        bind_spec(spec, to)
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self {
            id: cells.parse()?,
            tenant: cells.name()?,
            template: cells.name()?,
            status: cells.parse()?,
            reason: cells.maybe_text()?.map(Arc::from),
            status_since: cells.time()?,
            pool: cells.maybe_name()?,
            host: cells.maybe_name()?,
            driver: cells.parse()?,
            attempt: cells.small()?,
            fence: Fence { epoch: cells.uint()?, number: cells.uint()? },
            memory_mib: Mib(cells.uint()?),
            overhead_mib: Mib(cells.uint()?),
            vcpus: Vcpus(cells.uint()?),
            stateful: cells.flag()?,
            priority: cells.small()?,
            preemptible: cells.flag()?,
            criticality: cells.parse()?,
            on_full: cells.parse()?,
            slot_released: cells.flag()?,
            idled: cells.flag()?,
            resume_requested_at: cells.maybe_time()?,
            brought_in_at: cells.maybe_time()?,
            preempted_for: cells.maybe_parse()?,
            queued_at: cells.time()?,
            created_at: cells.time()?,
            started_at: cells.maybe_time()?,
            last_active_at: cells.time()?,
            ended_at: cells.maybe_time()?,
            exit_code: cells.maybe_small()?,
            charge_mib: Mib(cells.uint()?),
            resident_mib: cells.maybe_uint()?.map(Mib),
            measured: cells.flag()?,
            decision_id: cells.parse()?,
            body_hash: cells.uint()?,
            paused_by: cells.maybe_parse()?,
            meter: cells.json_or_default()?,
            key: cells.maybe_text()?.map(Arc::from),
            labels: cells.json_or_default()?,
            spec: read_spec(cells)?,
        })
    }
}
