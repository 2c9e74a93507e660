//! What operators set: plans, tenants, pools, policies, templates, keys, hosts.

use plimsoll_engine::rows::{
    HostRow, KeyRow, PlanRow, PoolRow, Role, TemplateRow, TenantRow, TenantStateRow,
};
use plimsoll_types::{HostId, Mib, PoolName, TenantId, Timestamp, Vcpus};

use super::{Binder, Cells, SqlRow};
use crate::error::StoreError;

const ROLES: [Role; 3] = [Role::Tenant, Role::Operator, Role::Host];

impl SqlRow for PlanRow {
    const COLUMNS: &'static [&'static str] = &["id", "limits"];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self { id, limits } = self;
        to.text(id.as_str())?;
        to.json(limits)
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self { id: cells.parse()?, limits: cells.json()? })
    }
}

impl SqlRow for TenantRow {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "plan",
        "payment_method",
        "payment_method_ever",
        "created_at_millis",
        "overrides",
        "suspended",
        "anchor_day",
    ];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self {
            id,
            plan,
            payment_method,
            payment_method_ever,
            created_at,
            overrides,
            suspended,
            anchor_day,
        } = self;
        to.text(id.as_str())?;
        to.text(plan.as_str())?;
        to.flag(*payment_method)?;
        to.flag(*payment_method_ever)?;
        to.time(*created_at)?;
        to.json(overrides)?;
        to.maybe_text(suspended.as_deref())?;
        to.maybe_int(anchor_day.map(i64::from))
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self {
            id: cells.parse()?,
            plan: cells.parse()?,
            payment_method: cells.flag()?,
            payment_method_ever: cells.flag()?,
            created_at: cells.time()?,
            overrides: cells.json()?,
            suspended: cells.maybe_text()?.map(str::to_owned),
            anchor_day: cells.maybe_small()?,
        })
    }
}

impl SqlRow for TenantStateRow {
    const COLUMNS: &'static [&'static str] = &["tenant", "state"];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self { tenant, state } = self;
        to.text(tenant.as_str())?;
        to.json(state)
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self { tenant: cells.parse()?, state: cells.json()? })
    }
}

impl SqlRow for PoolRow {
    const COLUMNS: &'static [&'static str] = &["name", "settings"];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self { name, settings } = self;
        to.text(name.as_str())?;
        to.json(settings)
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self { name: cells.parse()?, settings: cells.json()? })
    }
}

/// A policy snapshot as rows hold it: pool, version, when it was received, the signed text.
pub(in crate::sqlite) type PolicyRow = (PoolName, u64, Timestamp, String);

impl SqlRow for PolicyRow {
    const COLUMNS: &'static [&'static str] = &["pool", "version", "received_at_millis", "envelope"];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let (pool, version, received_at, envelope) = self;
        to.text(pool.as_str())?;
        to.uint(*version)?;
        to.time(*received_at)?;
        to.text(envelope)
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok((cells.parse()?, cells.uint()?, cells.time()?, cells.text()?.to_owned()))
    }
}

impl SqlRow for TemplateRow {
    const COLUMNS: &'static [&'static str] = &[
        "name",
        "driver",
        "memory_mib",
        "overhead_mib",
        "vcpus",
        "stateful",
        "rootfs",
        "command",
        "env",
        "host_labels",
        "counted",
        "baked",
        "pool",
    ];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self {
            name,
            driver,
            memory_mib,
            overhead_mib,
            vcpus,
            stateful,
            rootfs,
            command,
            env,
            host_labels,
            counted,
            baked,
            pool,
        } = self;
        to.text(name.as_str())?;
        to.text(driver.as_str())?;
        to.uint(memory_mib.get())?;
        to.uint(overhead_mib.get())?;
        to.uint(vcpus.get())?;
        to.flag(*stateful)?;
        to.maybe_text(rootfs.as_deref())?;
        to.json(command)?;
        to.json(env)?;
        to.json(host_labels)?;
        to.json(counted)?;
        to.flag(*baked)?;
        to.maybe_text(pool.as_ref().map(PoolName::as_str))
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self {
            name: cells.parse()?,
            driver: cells.parse()?,
            memory_mib: Mib(cells.uint()?),
            overhead_mib: Mib(cells.uint()?),
            vcpus: Vcpus(cells.uint()?),
            stateful: cells.flag()?,
            rootfs: cells.maybe_text()?.map(str::to_owned),
            command: cells.json()?,
            env: cells.json()?,
            host_labels: cells.json()?,
            counted: cells.json()?,
            baked: cells.flag()?,
            pool: cells.maybe_name()?,
        })
    }
}

impl SqlRow for KeyRow {
    const COLUMNS: &'static [&'static str] =
        &["id", "role", "tenant", "host", "secret_sha256", "created_at_millis"];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self { id, role, tenant, host, hash, created_at } = self;
        to.id(id)?;
        to.text(role.as_str())?;
        to.maybe_text(tenant.as_ref().map(TenantId::as_str))?;
        to.maybe_text(host.as_ref().map(HostId::as_str))?;
        to.text(hash)?;
        to.time(*created_at)
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self {
            id: cells.parse()?,
            role: cells.word(&ROLES, Role::as_str)?,
            tenant: cells.maybe_name()?,
            host: cells.maybe_name()?,
            hash: cells.text()?.to_owned(),
            created_at: cells.time()?,
        })
    }
}

impl SqlRow for HostRow {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "pool",
        "address",
        "secret",
        "incarnation",
        "command_numbers_through",
        "draining",
        "enrolled_at_millis",
        "boot_id",
        "old_boots",
    ];

    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()> {
        let Self {
            id,
            pool,
            address,
            secret,
            incarnation,
            command_numbers_through,
            draining,
            enrolled_at,
            boot_id,
            old_boots,
        } = self;
        to.text(id.as_str())?;
        to.text(pool.as_str())?;
        to.maybe_text(address.as_deref())?;
        to.maybe_text(secret.as_deref())?;
        to.uint(*incarnation)?;
        to.uint(*command_numbers_through)?;
        to.flag(*draining)?;
        to.time(*enrolled_at)?;
        to.maybe_text(boot_id.as_deref())?;
        to.json_unless(old_boots.is_empty(), old_boots)
    }

    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError> {
        Ok(Self {
            id: cells.parse()?,
            pool: cells.name()?,
            address: cells.maybe_text()?.map(str::to_owned),
            secret: cells.maybe_text()?.map(str::to_owned),
            incarnation: cells.uint()?,
            command_numbers_through: cells.uint()?,
            draining: cells.flag()?,
            enrolled_at: cells.time()?,
            boot_id: cells.maybe_text()?.map(str::to_owned),
            old_boots: cells.json_or_default()?,
        })
    }
}
