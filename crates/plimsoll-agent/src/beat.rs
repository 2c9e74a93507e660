//! The agent's side of registration and heartbeats.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_api::{Heartbeat, RegisterHost, Secret};
use plimsoll_client::{Client, Error};
use plimsoll_host::HostInput;
use plimsoll_types::{HOST_PROTOCOL_VERSION, HostId, Millis, PoolName};
use tokio::sync::Notify;

use crate::calls::detail_of;
use crate::core::{Busy, Core};
use crate::metrics::Metrics;
use crate::sampler::Sampler;

/// First wait before a registration that failed is tried again; doubles up to
/// [`REGISTER_WAIT_MAX`].
const REGISTER_WAIT: Duration = Duration::from_millis(500);
/// Longest such wait: an agent is back within this of its cell.
const REGISTER_WAIT_MAX: Duration = Duration::from_secs(10);

/// Shortest period of heartbeats that a cell can ask for.
const HEARTBEAT_MIN: Millis = Millis(100);

/// Registers this start of the agent and then sends a heartbeat each time that one is due.
pub(crate) struct Beat {
    pub(crate) core: Core,
    pub(crate) client: Client,
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) due: Arc<Notify>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) host: HostId,
    pub(crate) boot_id: String,
    pub(crate) pool: PoolName,
    pub(crate) address: Option<String>,
    pub(crate) secret: Secret,
}

impl Beat {
    /// Runs until it is dropped or the state machine has ended.
    pub(crate) async fn run(self) {
        if self.register().await.is_err() {
            return;
        }
        loop {
            self.due.notified().await;
            match self.once().await {
                Ok(true) => {}
                // The cell holds a later start of this agent, or has lost this one: ask anew.
                Ok(false) => {
                    if self.register().await.is_err() {
                        return;
                    }
                }
                Err(Busy) => return,
            }
        }
    }

    async fn register(&self) -> Result<(), Busy> {
        let body = RegisterHost {
            boot_id: self.boot_id.clone(),
            address: self.address.clone(),
            pool: Some(self.pool.clone()),
            protocol: HOST_PROTOCOL_VERSION,
            secret: Some(self.secret.clone()),
        };
        let mut wait = REGISTER_WAIT;
        loop {
            match self.client.register_host(&self.host, &body).await {
                Ok(answer) => {
                    let incarnation = answer.incarnation;
                    tracing::info!(incarnation, "registered with the cell");
                    if let Some(period) = answer.heartbeat_millis {
                        let period = Millis(period.max(HEARTBEAT_MIN.0));
                        self.core.ask(move |host, _| host.limit_heartbeat(period)).await?;
                    }
                    self.core.input(HostInput::Registered { incarnation }).await;
                    return Ok(());
                }
                Err(error) if error.is_transient() => {
                    let error = detail_of(&error);
                    tracing::warn!(error, "cannot register with the cell yet; trying again");
                }
                Err(error) => {
                    let error = detail_of(&error);
                    tracing::error!(error, "the cell does not take this host; trying again");
                }
            }
            tokio::time::sleep(wait).await;
            wait = wait.saturating_mul(2).min(REGISTER_WAIT_MAX);
            // An agent that is shutting down is not asked to wait here: its tasks are dropped.
            self.core.ask(|_, _| ()).await?;
        }
    }

    /// Sends one heartbeat. `false` when the cell did not take it as this host's latest.
    async fn once(&self) -> Result<bool, Busy> {
        self.sampler.freshen().await?;
        let report = self.core.ask(|host, now| host.heartbeat(now)).await?;
        let sequence = report.sequence;
        let body = Heartbeat::from(report);
        match self.client.heartbeat(&self.host, &body).await {
            Ok(answer) => {
                let accepted = answer.accepted;
                self.metrics.heartbeat(if accepted { "accepted" } else { "outdated" });
                let answer = Box::new(answer);
                self.core.input(HostInput::HeartbeatAnswered { sequence, answer }).await;
                Ok(accepted)
            }
            Err(error) => {
                self.metrics.heartbeat("failed");
                tracing::warn!(error = detail_of(&error), "a heartbeat did not arrive");
                self.core.input(HostInput::HeartbeatFailed).await;
                Ok(!is_unknown_host(&error))
            }
        }
    }
}

/// Whether the cell answered that it does not know this host.
fn is_unknown_host(error: &Error) -> bool {
    error.status() == Some(404)
}
