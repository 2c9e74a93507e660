//! The agents' HTTP interface, from the cell's side.

use std::path::Path;
use std::time::Duration;

use plimsoll_api::Problem;
use plimsoll_api::{EndGuest, ExecRequest, ExecResponse, GuestExec, Heartbeat, HeartbeatDefaults};
use plimsoll_types::{HostCommand, HostId, HostOp, HostOutcome, HostReport, PoolName, SandboxId};
use reqwest::{Certificate, Client, Method, RequestBuilder, Response, StatusCode, redirect};
use serde::de::DeserializeOwned;

use crate::clock::wall;

/// Longest wait for a connection to a host: within one network a host that is there answers in
/// milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// An idle connection to a host is kept for so long: a few heartbeats.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Idle connections kept to one host.
const IDLE_PER_HOST_MAX: usize = 4;
/// Largest answer that is read: that of a capacity question, which lists every guest of a host.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// What an exec may take beyond its own time limit: the way there and back.
const EXEC_SLACK: Duration = Duration::from_secs(10);

/// Why a host gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    /// The call did not come through.
    #[error("the host could not be reached: {0}")]
    Unreachable(String),
    /// The host said no.
    #[error("the host answered {status}: {detail}")]
    Refused {
        /// Its status.
        status: u16,
        /// What it said.
        detail: String,
        /// The body, where it is a problem.
        problem: Option<Box<Problem>>,
    },
    /// The answer is not what the protocol says.
    #[error("the host's answer is not understood: {0}")]
    Garbled(String),
}

/// The client of agents.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    client: Client,
}

impl Agent {
    /// A client; `ca` is a file with the certificates that agents' TLS is held against.
    ///
    /// # Errors
    /// When the file cannot be read or is no certificate.
    pub(crate) fn new(ca: Option<&Path>) -> Result<Self, AgentSetupError> {
        let mut builder = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_PER_HOST_MAX)
            .tcp_nodelay(true)
            .http1_only()
            // A host is where it says that it is; nobody in between is asked or believed.
            .no_proxy()
            .redirect(redirect::Policy::none());
        if let Some(path) = ca {
            let read = |source| AgentSetupError::Read { path: path.display().to_string(), source };
            let pem = std::fs::read(path).map_err(read)?;
            builder = builder.tls_certs_only(Certificate::from_pem_bundle(&pem)?);
        }
        Ok(Self { client: builder.build()? })
    }

    /// Sends one command and says how it came out, whatever happens.
    pub(crate) async fn command(
        &self,
        address: &str,
        secret: Option<&str>,
        command: &HostCommand,
    ) -> HostOutcome {
        let id = command.op.guest();
        let request = match &command.op {
            HostOp::End { .. } => {
                let query = EndGuest::from_command(command).map(|end| end.to_pairs());
                self.request(Method::DELETE, address, &format!("/v1/guests/{id}"), secret)
                    .query(&query.unwrap_or_default())
            }
            HostOp::Start { .. } => {
                self.request(Method::POST, address, "/v1/guests", secret).json(command)
            }
            HostOp::Pause { .. } | HostOp::Resume { .. } | HostOp::Stop { .. } => {
                let path = format!("/v1/guests/{id}/{}", command.op.word());
                self.request(Method::POST, address, &path, secret).json(command)
            }
        };
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => {
                // Nothing was sent, so nothing was done.
                return HostOutcome::Failed { detail: cause(&error) };
            }
            Err(error) => return HostOutcome::Unknown { detail: cause(&error) },
        };
        let status = response.status();
        match body(response).await {
            Ok(bytes) => match serde_json::from_slice::<HostOutcome>(&bytes) {
                Ok(outcome) => outcome,
                Err(_) => not_an_outcome(status, &bytes),
            },
            Err(error) => HostOutcome::Unknown { detail: error.to_string() },
        }
    }

    /// Asks a host afresh what it would accept.
    pub(crate) async fn capacity(
        &self,
        host: &HostId,
        address: &str,
        secret: Option<&str>,
        default_pool: &PoolName,
    ) -> Result<HostReport, AgentError> {
        let request = self.request(Method::GET, address, "/v1/capacity", secret);
        let beat: Heartbeat = answer(request).await?;
        let defaults = HeartbeatDefaults { pool: default_pool.clone(), received_at: wall() };
        beat.into_report(host.clone(), &defaults)
            .map_err(|error| AgentError::Garbled(error.to_string()))
    }

    /// Runs a command in a guest.
    pub(crate) async fn exec(
        &self,
        address: &str,
        secret: Option<&str>,
        id: SandboxId,
        attempt: u32,
        exec: ExecRequest,
    ) -> Result<ExecResponse, AgentError> {
        let ExecRequest { command, timeout_seconds } = exec;
        let limit = Duration::from_secs(timeout_seconds) + EXEC_SLACK;
        let body = GuestExec { id, attempt, command, timeout_seconds };
        let path = format!("/v1/guests/{id}/exec");
        answer(self.request(Method::POST, address, &path, secret).json(&body).timeout(limit)).await
    }

    fn request(
        &self,
        method: Method,
        address: &str,
        path: &str,
        secret: Option<&str>,
    ) -> RequestBuilder {
        let url = format!("{}{path}", address.trim_end_matches('/'));
        let request = self.client.request(method, url);
        match secret {
            Some(secret) => request.bearer_auth(secret),
            None => request,
        }
    }
}

/// Why the client of agents could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum AgentSetupError {
    /// The file of certificates could not be read.
    #[error("{path} could not be read")]
    Read {
        /// Which file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The certificates are not usable.
    #[error("the client of agents could not be set up")]
    Client(#[from] reqwest::Error),
}

/// An answer that is no outcome: a problem, or something in between that is no agent. Statuses
/// that say "not begun" are failures, the others leave open what was done.
fn not_an_outcome(status: StatusCode, bytes: &[u8]) -> HostOutcome {
    let (detail, problem) = refusal(status, bytes);
    if let Some(code) = problem.as_ref().and_then(|problem| problem.code.refusal())
        && code.is_capacity()
    {
        return HostOutcome::Refused { code, detail };
    }
    if status.is_client_error() {
        HostOutcome::Failed { detail }
    } else {
        HostOutcome::Unknown { detail }
    }
}

async fn answer<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, AgentError> {
    let response = request.send().await.map_err(|error| AgentError::Unreachable(cause(&error)))?;
    let status = response.status();
    let bytes = body(response).await?;
    if !status.is_success() {
        let (detail, problem) = refusal(status, &bytes);
        return Err(AgentError::Refused { status: status.as_u16(), detail, problem });
    }
    serde_json::from_slice(&bytes).map_err(|error| AgentError::Garbled(error.to_string()))
}

async fn body(mut response: Response) -> Result<Vec<u8>, AgentError> {
    let mut bytes = Vec::new();
    let lost = |error: reqwest::Error| AgentError::Unreachable(cause(&error));
    while let Some(piece) = response.chunk().await.map_err(lost)? {
        if bytes.len() + piece.len() > ANSWER_BYTES_MAX {
            let bound = format!("it is larger than {ANSWER_BYTES_MAX} bytes");
            return Err(AgentError::Garbled(bound));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

fn refusal(status: StatusCode, bytes: &[u8]) -> (String, Option<Box<Problem>>) {
    let problem: Option<Box<Problem>> = serde_json::from_slice(bytes).ok();
    let detail = problem
        .as_ref()
        .map_or_else(|| format!("status {status}"), |problem| problem.detail.clone());
    (detail, problem)
}

/// The innermost cause, without the URL: addresses are operators' knowledge.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if std::ptr::addr_eq(cause, error) {
        "the request failed".to_owned()
    } else {
        cause.to_string()
    }
}
