//! From the engine's rows and views to the bodies of the API, and back.

mod admin;
mod quota;
mod sandbox;

pub(crate) use admin::{
    counts, decision, delivery, endpoint, event, host, key, key_role, plan, plan_row, pool,
    pool_row, template, template_row, tenant, tenant_row, tenant_row_changed,
};
pub(crate) use quota::quota;
pub(crate) use sandbox::{
    create, explanation, fingerprint, fork, patch, reservation, reserve_item, reserve_mode, sandbox,
};
