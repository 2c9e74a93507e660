//! Hosts that exist only as heartbeats, and a tenant without limits, so that a cell has something
//! to reserve on.

use std::time::Duration;

use plimsoll_api::{CreateKey, CreateTenant, Heartbeat, Limits, Plan, Pool, Role, Secret};
use plimsoll_client::{Client, ClientConfig, Error};
use plimsoll_types::{HostId, PlanId, PoolName, TenantId};
use tokio::task::JoinHandle;

/// The pool, plan and tenant of a load run.
const NAME: &str = "bench";
/// Memory that each host offers: room for any run, in MiB.
const HOST_MIB: u64 = 1 << 30;
/// Often enough that no host is ever stale.
const BEAT: Duration = Duration::from_secs(5);

/// Why a fleet could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The cell refused a part of it.
    #[error("setting up {what}: {source}")]
    Refused {
        /// Which part.
        what: &'static str,
        /// Why.
        source: Error,
    },
    /// A name is no name.
    #[error("{0}")]
    Name(#[from] plimsoll_types::NameError),
}

/// Hosts that report until this is dropped.
#[derive(Debug)]
pub struct Fleet {
    key: Secret,
    beats: JoinHandle<()>,
}

impl Fleet {
    /// Makes a pool, a plan and a tenant of the name `bench` where they are not there, and so many
    /// hosts in the pool.
    ///
    /// # Errors
    /// When the cell refuses.
    pub async fn start(url: &str, operator: Secret, hosts: u32) -> Result<Self, FleetError> {
        let refused = |what| move |source| FleetError::Refused { what, source };
        let client = Client::new(ClientConfig::new([url]).with_key(operator))
            .map_err(refused("the client"))?;
        let plan = PlanId::new(NAME)?;
        let tenant = TenantId::new(NAME)?;
        let pool = PoolName::new(NAME)?;
        there(client.create_pool(&Pool::new(pool.clone())).await).map_err(refused("the pool"))?;
        there(client.create_plan(&Plan::new(plan.clone(), Limits::default())).await)
            .map_err(refused("the plan"))?;
        let body = CreateTenant {
            id: tenant.clone(),
            plan: Some(plan),
            payment_method: false,
            created_at: None,
            overrides: Limits::default(),
            period_anchor_day: None,
        };
        there(client.create_tenant(&body).await).map_err(refused("the tenant"))?;
        let body = CreateKey { role: Role::Tenant, tenant: Some(tenant), host: None };
        let key = client.create_key(&body).await.map_err(refused("the tenant's key"))?.key;
        let body = CreateKey { role: Role::Host, tenant: None, host: None };
        let host_key = client.create_key(&body).await.map_err(refused("the hosts' key"))?.key;
        let reporter = Client::new(ClientConfig::new([url]).with_key(host_key))
            .map_err(refused("the client"))?;
        let boot = format!("bench-{}", std::process::id());
        let mut sequence = 1;
        beat(&reporter, &pool, hosts, &boot, sequence).await?;
        let beats = tokio::spawn(async move {
            loop {
                tokio::time::sleep(BEAT).await;
                sequence += 1;
                // A report that is lost is made good by the next.
                let _ = beat(&reporter, &pool, hosts, &boot, sequence).await;
            }
        });
        Ok(Self { key, beats })
    }

    /// The key of a tenant without limits.
    #[must_use]
    pub fn tenant_key(&self) -> &str {
        self.key.expose()
    }

    /// The pool to reserve in.
    #[must_use]
    pub const fn pool(&self) -> &'static str {
        NAME
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.beats.abort();
    }
}

/// What an earlier run has made is there already.
fn there<T>(made: Result<T, Error>) -> Result<(), Error> {
    match made {
        Err(error) if error.status() != Some(409) => Err(error),
        _ => Ok(()),
    }
}

async fn beat(
    client: &Client,
    pool: &PoolName,
    hosts: u32,
    boot: &str,
    sequence: u64,
) -> Result<(), FleetError> {
    for number in 0..hosts {
        let host = HostId::new(&format!("bench-{number}"))?;
        let body = serde_json::json!({
            "boot_id": boot, "sequence": sequence, "pool": pool,
            "cpu_millis_total": 64_000, "cpu_millis_used": 0,
            "memory_mib_total": HOST_MIB, "memory_mib_used": 0,
            "memory_admission": "working-set", "memory_mib_admittable": HOST_MIB,
            "guests": [], "complete": false
        });
        let body: Heartbeat = serde_json::from_value(body).map_err(|error| {
            let what = "the heartbeat";
            FleetError::Refused { what, source: Error::Config { what, detail: error.to_string() } }
        })?;
        client
            .heartbeat(&host, &body)
            .await
            .map_err(|source| FleetError::Refused { what: "a host", source })?;
    }
    Ok(())
}
