//! `plans`, `tenants` and `keys`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use plimsoll_api::{
    Body as _, BurstLimit, CreateKey, CreateTenant, LimitsPatch, Plan, Role, Tenant, TenantPatch,
};
use plimsoll_types::{HostId, KeyId, PlanId, TenantId};

use super::Rows;
use super::objects::{self as group, group};
use crate::connect::{As, Connect, Patience};
use crate::failure::Failure;
use crate::show::{self, Table, limit, opt, yes};

fn burst(limits: BurstLimit) -> String {
    match limits.burst_limit {
        Some(burst) => format!("{} (burst {burst})", limit(limits.limit)),
        None => limit(limits.limit),
    }
}

group! {
    /// Plans.
    Plans, "plan", PlanId, "id", Plan, LimitsPatch, Plan:
    create_plan, plans, plan, patch_plan, delete_plan;
    columns &[
        "plan", ">sandboxes", ">vcpus", ">memory mib", ">cpu seconds", ">gib hours",
        ">egress bytes", ">creates/min", ">creates/h",
    ];
    row |plan| vec![
        plan.id.to_string(),
        burst(plan.concurrency.sandboxes),
        burst(plan.concurrency.vcpus),
        burst(plan.concurrency.memory_mib),
        limit(plan.consumption.cpu_seconds.limit),
        limit(plan.consumption.gib_hours.limit),
        limit(plan.consumption.egress_bytes.limit),
        limit(plan.rate.creates_per_minute.limit),
        limit(plan.rate.creates_per_hour.limit),
    ];
}

group! {
    /// Tenants.
    Tenants, "tenant", TenantId, "id", CreateTenant, TenantPatch, Tenant:
    create_tenant, tenants, tenant, patch_tenant, delete_tenant;
    columns &["tenant", "plan", "pays", "suspended", "reason", "since"];
    row |tenant| vec![
        tenant.id.to_string(),
        tenant.plan.to_string(),
        yes(tenant.payment_method),
        yes(tenant.suspended),
        opt(tenant.suspended_reason.as_ref()),
        tenant.created_at.to_string(),
    ];
}

/// Keys.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Keys {
    #[command(subcommand)]
    action: Option<KeysAction>,
    #[command(flatten)]
    rows: Rows,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Debug, Subcommand)]
enum KeysAction {
    /// Make a key; prints it this once
    Create(KeyMake),
    /// Remove a key
    Rm(KeyOne),
}

#[derive(Args, Clone, Debug)]
struct KeyMake {
    /// What it may do: tenant, operator or host
    #[arg(long, value_name = "ROLE", value_parser = role)]
    role: Role,
    /// Role tenant: which
    #[arg(long = "for-tenant", value_name = "TENANT")]
    for_tenant: Option<TenantId>,
    /// Role host: which [default: any]
    #[arg(long = "for-host", value_name = "HOST")]
    for_host: Option<HostId>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Clone, Debug)]
struct KeyOne {
    /// The key's id
    #[arg(value_name = "ID")]
    id: KeyId,
    #[command(flatten)]
    connect: Connect,
}

fn role(text: &str) -> Result<Role, String> {
    let roles = [Role::Tenant, Role::Operator, Role::Host];
    let found = roles.into_iter().find(|role| role.as_str() == text);
    found.ok_or_else(|| "expected tenant, operator or host".to_owned())
}

impl Keys {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        match self.action {
            Some(KeysAction::Create(make)) => {
                let body =
                    CreateKey { role: make.role, tenant: make.for_tenant, host: make.for_host };
                body.validate()?;
                let client = make.connect.client(As::Operator, Patience::Answers)?;
                let key = client.create_key(&body).await?;
                if show::wants_json() {
                    show::json(&key)?;
                } else {
                    show::out(&format!("{}\n", key.key.expose()))?;
                    show::say(&format!(
                        "{} of role {}: it is shown this once",
                        key.info.id,
                        key.info.role.as_str()
                    ));
                }
            }
            Some(KeysAction::Rm(one)) => {
                let client = one.connect.client(As::Operator, Patience::Answers)?;
                client.delete_key(one.id).await?;
                show::say(&format!("key {} is gone", one.id));
            }
            None => {
                let client = self.connect.client(As::Operator, Patience::Answers)?;
                let page = self.rows.collect(async |page| client.keys(&page).await).await?;
                if show::wants_json() {
                    show::json(&page)?;
                    return Ok(ExitCode::SUCCESS);
                }
                let mut table = Table::new(&["key", "role", "tenant", "host", "made"]);
                for key in &page.items {
                    table.row(vec![
                        key.id.to_string(),
                        key.role.as_str().to_owned(),
                        opt(key.tenant.as_ref()),
                        opt(key.host.as_ref()),
                        opt(key.created_at),
                    ]);
                }
                table.print()?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
