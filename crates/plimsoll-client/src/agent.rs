//! The cell's side of the host protocol: commands and questions to agents.

use std::time::Duration;

use plimsoll_api::{
    EndGuest, ExecResponse, GuestExec, Heartbeat, LogsQuery, Pairs, Problem, Secret,
};
use plimsoll_types::{HostCommand, HostOp, HostOutcome, SandboxId};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Method, Url};
use serde::Serialize;

use crate::error::Error;
use crate::transport::{BodyFault, bearer, http_client, parse_url, read_bounded};

/// Largest answer of an agent in bytes: its report with 100 000 guests is half of that.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Longest time to a connection: agents are near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Where an agent listens, and what to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentTarget {
    /// Its base URL.
    pub address: String,
    /// The host's secret.
    pub secret: Option<Secret>,
}

/// Why an agent gave no answer of its own.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The request never left: nothing was carried out by it.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The answer was lost: the request may have been carried out.
    #[error("no answer: {0}")]
    Lost(String),
    /// The agent refused the request itself.
    #[error("{}: {}", .0.code, .0.detail)]
    Refused(Box<Problem>),
}

/// Speaks to agents. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct AgentClient {
    http: reqwest::Client,
}

impl AgentClient {
    /// A client that trusts the given authorities in PEM, or the system's.
    ///
    /// # Errors
    /// [`Error::Config`] where the certificates are malformed.
    pub fn new(ca_pem: Option<&[u8]>) -> Result<Self, Error> {
        let build = |secure| {
            http_client(ca_pem, secure)?
                .connect_timeout(CONNECT_TIMEOUT)
                .no_proxy()
                .build()
                .map_err(|error| Error::Config { what: "TLS", detail: error.to_string() })
        };
        // A machine without certificates can still speak to agents on loopback.
        let http = build(true).or_else(|_| build(false))?;
        Ok(Self { http })
    }

    /// Sends one command, once. Whatever goes wrong on the way is [`HostOutcome::Unknown`]: an
    /// earlier sending of the same command may have arrived.
    pub async fn command(
        &self,
        target: &AgentTarget,
        command: &HostCommand,
        timeout: Duration,
    ) -> HostOutcome {
        match self.try_command(target, command, timeout).await {
            Ok(outcome) => outcome,
            Err(error) => HostOutcome::Unknown { detail: error.to_string() },
        }
    }

    /// As [`Self::command`], telling apart what never left from what was lost.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn try_command(
        &self,
        target: &AgentTarget,
        command: &HostCommand,
        timeout: Duration,
    ) -> Result<HostOutcome, AgentError> {
        let id = command.op.guest();
        let (method, path) = match &command.op {
            HostOp::Start { .. } => (Method::POST, "/v1/guests".to_owned()),
            HostOp::Pause { .. } | HostOp::Resume { .. } | HostOp::Stop { .. } => {
                (Method::POST, format!("/v1/guests/{id}/{}", command.op.word()))
            }
            HostOp::End { .. } => (Method::DELETE, format!("/v1/guests/{id}")),
        };
        let (query, body) = match EndGuest::from_command(command) {
            Some(end) => (end.to_pairs(), None),
            None => (Pairs::new(), Some(command)),
        };
        let request = Request { method, path, query, body, timeout };
        let (status, bytes) = self.send(target, request).await?;
        serde_json::from_slice(&bytes).map_err(|_| refusal(status, &bytes))
    }

    /// Asks an agent for its report, computed now.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn capacity(
        &self,
        target: &AgentTarget,
        timeout: Duration,
    ) -> Result<Heartbeat, AgentError> {
        let path = "/v1/capacity".to_owned();
        let request: Request<'_, ()> =
            Request { method: Method::GET, path, query: Pairs::new(), body: None, timeout };
        self.read(target, request).await
    }

    /// Runs a command in a guest. `timeout` is beyond the command's own.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn exec(
        &self,
        target: &AgentTarget,
        exec: &GuestExec,
        timeout: Duration,
    ) -> Result<ExecResponse, AgentError> {
        let path = format!("/v1/guests/{}/exec", exec.id);
        let timeout = timeout.saturating_add(Duration::from_secs(exec.timeout_seconds));
        let query = Pairs::new();
        let request = Request { method: Method::POST, path, query, body: Some(exec), timeout };
        self.read(target, request).await
    }

    /// The newest of a guest's output: up to `bytes`, and one more where there is more.
    ///
    /// # Errors
    /// [`AgentError`].
    pub async fn logs(
        &self,
        target: &AgentTarget,
        id: SandboxId,
        bytes: usize,
        timeout: Duration,
    ) -> Result<Vec<u8>, AgentError> {
        let path = format!("/v1/guests/{id}/logs");
        let query = LogsQuery { bytes }.to_pairs();
        let request: Request<'_, ()> =
            Request { method: Method::GET, path, query, body: None, timeout };
        let (status, mut tail) = self.send(target, request).await?;
        if !(200..300).contains(&status) {
            return Err(refusal(status, &tail));
        }
        // What a host answers beyond what it was asked for is no reason to hand that on.
        let beyond = tail.len().saturating_sub(bytes.saturating_add(1));
        tail.drain(..beyond);
        Ok(tail)
    }

    async fn read<T: serde::de::DeserializeOwned>(
        &self,
        target: &AgentTarget,
        request: Request<'_, impl Serialize>,
    ) -> Result<T, AgentError> {
        let (status, bytes) = self.send(target, request).await?;
        if !(200..300).contains(&status) {
            return Err(refusal(status, &bytes));
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| AgentError::Lost(format!("an answer that is not understood: {error}")))
    }

    async fn send(
        &self,
        target: &AgentTarget,
        request: Request<'_, impl Serialize>,
    ) -> Result<(u16, Vec<u8>), AgentError> {
        let not_sent = |error: Error| AgentError::NotSent(error.to_string());
        let base = parse_url(&target.address).map_err(not_sent)?;
        let mut sent = self
            .http
            .request(request.method, address(base, &request.path, &request.query))
            .timeout(request.timeout);
        if let Some(secret) = &target.secret {
            sent = sent.header(AUTHORIZATION, bearer(secret.expose()).map_err(not_sent)?);
        }
        if let Some(body) = request.body {
            let bytes =
                serde_json::to_vec(body).map_err(|error| AgentError::NotSent(error.to_string()))?;
            sent = sent.header(CONTENT_TYPE, "application/json").body(bytes);
        }
        let response = sent.send().await.map_err(on_the_way)?;
        let status = response.status().as_u16();
        let bytes =
            read_bounded(response, ANSWER_BYTES_MAX).await.map_err(|fault| match fault {
                BodyFault::TooLarge(bytes_max) => {
                    AgentError::Lost(format!("an answer larger than {bytes_max} bytes"))
                }
                BodyFault::OnTheWay(error) => on_the_way(error),
            })?;
        Ok((status, bytes))
    }
}

struct Request<'a, B> {
    method: Method,
    path: String,
    query: Pairs,
    body: Option<&'a B>,
    timeout: Duration,
}

fn address(mut base: Url, path: &str, query: &Pairs) -> Url {
    base.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
    if !query.is_empty() {
        base.query_pairs_mut().extend_pairs(query);
    }
    base
}

fn on_the_way(error: reqwest::Error) -> AgentError {
    let error = error.without_url();
    let mut detail = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        detail = format!("{detail}: {inner}");
        cause = inner.source();
    }
    if error.is_connect() || error.is_builder() {
        AgentError::NotSent(detail)
    } else {
        AgentError::Lost(detail)
    }
}

fn refusal(status: u16, bytes: &[u8]) -> AgentError {
    match serde_json::from_slice::<Problem>(bytes) {
        Ok(problem) => AgentError::Refused(Box::new(problem)),
        Err(_) => AgentError::Lost(format!("status {status} without an answer of the agent's")),
    }
}
