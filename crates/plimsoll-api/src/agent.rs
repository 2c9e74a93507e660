//! What cell and agent say to each other beside heartbeats.
//!
//! Commands travel as [`HostCommand`] in the body of `POST /v1/guests`, `.../pause`, `.../resume`
//! and `.../stop`, and as [`EndGuest`] in the query of `DELETE /v1/guests/{id}`, since bodies of
//! DELETE get lost on the way. Every answer to a command is a [`HostOutcome`] whatever its status.

use plimsoll_types::{
    Fence, HostCommand, HostId, HostOp, HostOutcome, PoolName, SandboxId, bounds,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::host::check_address;
use crate::input::{Body, FieldError, check, check_counted, check_text};
use crate::page::{Pairs, push, unknown};
use crate::problem::refusal;
use crate::sandbox::{check_exec, exec_timeout_seconds};
use crate::secret::Secret;

/// Body of `POST /v1/hosts/{host}/register`: an agent has started. Unknown fields are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegisterHost {
    /// New at each start of the agent.
    pub boot_id: String,
    /// Where the agent listens.
    #[serde(default)]
    pub address: Option<String>,
    /// Its pool; the cell's default one where absent.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub pool: Option<PoolName>,
    /// Version of the host protocol that the agent speaks.
    #[serde(default)]
    pub protocol: u32,
    /// What the cell is to show the agent with each call, made by the agent at its enrolment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

impl Body for RegisterHost {
    fn validate(&self) -> Result<(), FieldError> {
        if self.boot_id.is_empty() {
            return Err(FieldError::new("boot_id", "an empty text", "a text new at each start"));
        }
        check_text("boot_id", &self.boot_id, bounds::LABEL_LENGTH_MAX)?;
        if let Some(secret) = &self.secret {
            check_secret("secret", secret.expose())?;
        }
        self.address.as_ref().map_or(Ok(()), |address| check_address("address", address))
    }
}

/// Body of `POST /v1/admin/hosts`: a provider of an external pool, which serves the agent's guest
/// API and is asked for its report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrolHost {
    /// The name that it gets as a host.
    #[schema(value_type = String)]
    pub id: HostId,
    /// Its pool, which has `external: true`.
    #[schema(value_type = String)]
    pub pool: PoolName,
    /// The base URL of its guest API; `https://` unless it is on loopback, since the secret and
    /// every guest's environment go there.
    pub address: String,
    /// What it is shown with each call. Never shown again.
    pub secret: Secret,
}

impl Body for EnrolHost {
    fn validate(&self) -> Result<(), FieldError> {
        check_secret("secret", self.secret.expose())?;
        check_address("address", &self.address)?;
        if self.address.starts_with("https://") || is_loopback(&self.address) {
            return Ok(());
        }
        let bound = "https://, or http:// and an address of loopback";
        Err(FieldError::new("address", format_args!("{:?}", self.address), bound))
    }
}

/// Whether a plain URL names this very machine.
fn is_loopback(address: &str) -> bool {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Checks a secret without repeating it: it is to fit into a header.
fn check_secret(field: &str, secret: &str) -> Result<(), FieldError> {
    let fits = (1..=bounds::LABEL_LENGTH_MAX).contains(&secret.len());
    if fits && secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let bound = format!("1 to {} visible ASCII characters", bounds::LABEL_LENGTH_MAX);
    Err(FieldError::new(field, "a hidden value", bound))
}

/// Answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegisterAnswer {
    /// To be sent with every heartbeat of this start; higher than any before.
    pub incarnation: u64,
    /// The leader's epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// How often to heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_millis: Option<u64>,
}

impl Body for HostCommand {
    fn validate(&self) -> Result<(), FieldError> {
        if self.op.attempt() == 0 {
            return Err(FieldError::new("attempt", 0, "an integer of at least 1"));
        }
        let HostOp::Start { guest } = &self.op else { return Ok(()) };
        let check_size = || {
            check("memory_mib", guest.memory_mib.get())?;
            check("overhead_mib", guest.overhead_mib.get())?;
            check("vcpus", guest.vcpus.get())?;
            check_counted("counted", &guest.counted)
        };
        check_size().map_err(|error| error.within("guest"))
    }
}

/// Checks that a command belongs to the route that it came by.
///
/// # Errors
/// Names `op` or `id` where it does not.
pub fn check_command(
    command: &HostCommand,
    op: &str,
    guest: Option<SandboxId>,
) -> Result<(), FieldError> {
    if command.op.word() != op {
        return Err(FieldError::new("op", command.op.word(), format!("{op} on this route")));
    }
    match guest.filter(|guest| *guest != command.op.guest()) {
        Some(guest) => {
            Err(FieldError::new("id", command.op.guest(), format!("the id of the path, {guest}")))
        }
        None => Ok(()),
    }
}

/// The status that goes with an outcome; the body says all.
#[must_use]
pub const fn outcome_status(outcome: &HostOutcome) -> u16 {
    match outcome {
        HostOutcome::Done => 200,
        HostOutcome::Refused { code, .. } => refusal(*code).status,
        HostOutcome::Failed { .. } => 502,
        HostOutcome::Fenced { .. } => 409,
        HostOutcome::Unknown { .. } => 504,
    }
}

/// Query of `DELETE /v1/guests/{id}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndGuest {
    /// Its place in the order of commands.
    pub fence: Fence,
    /// Not to be begun once the host's uptime has passed this.
    pub deadline_uptime_millis: Option<u64>,
    /// Every attempt up to this one.
    pub attempt: u32,
}

impl EndGuest {
    /// The command that the query says, for the guest of the path.
    #[must_use]
    pub const fn into_command(self, id: SandboxId) -> HostCommand {
        HostCommand {
            fence: self.fence,
            deadline_uptime_millis: self.deadline_uptime_millis,
            op: HostOp::End { id, attempt: self.attempt },
        }
    }

    /// The query of a command, where it is one to end a guest.
    #[must_use]
    pub const fn from_command(command: &HostCommand) -> Option<Self> {
        match &command.op {
            HostOp::End { attempt, .. } => Some(Self {
                fence: command.fence,
                deadline_uptime_millis: command.deadline_uptime_millis,
                attempt: *attempt,
            }),
            _ => None,
        }
    }

    /// Reads the query.
    ///
    /// # Errors
    /// Names the parameter that is missing, unknown or no number.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<Self, FieldError> {
        let (mut epoch, mut number, mut attempt, mut deadline) = (None, None, None, None);
        for (name, value) in pairs {
            let slot = match name.as_str() {
                "epoch" => &mut epoch,
                "number" => &mut number,
                "attempt" => &mut attempt,
                "deadline_uptime_millis" => &mut deadline,
                _ => {
                    return Err(unknown(name, "epoch, number, attempt, deadline_uptime_millis"));
                }
            };
            let parsed: u64 = value
                .parse()
                .map_err(|_| FieldError::new(name, value, "an integer of at least 0"))?;
            *slot = Some(parsed);
        }
        let needed = |name: &str, value: Option<u64>| {
            value.ok_or_else(|| FieldError::new(name, "nothing", "an integer of at least 0"))
        };
        let attempt = needed("attempt", attempt)?;
        Ok(Self {
            fence: Fence { epoch: needed("epoch", epoch)?, number: needed("number", number)? },
            deadline_uptime_millis: deadline,
            attempt: u32::try_from(attempt).map_err(|_| {
                FieldError::new("attempt", attempt, format!("an integer from 0 to {}", u32::MAX))
            })?,
        })
    }

    /// The query as pairs.
    #[must_use]
    pub fn to_pairs(&self) -> Pairs {
        let mut pairs = Pairs::new();
        push(&mut pairs, "epoch", Some(self.fence.epoch));
        push(&mut pairs, "number", Some(self.fence.number));
        push(&mut pairs, "attempt", Some(self.attempt));
        push(&mut pairs, "deadline_uptime_millis", self.deadline_uptime_millis);
        pairs
    }
}

/// Body of the agent's `POST /v1/guests/{id}/exec`. The answer is an
/// [`ExecResponse`](crate::ExecResponse), or a problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuestExec {
    /// Which guest; the one of the path.
    #[schema(value_type = String)]
    pub id: SandboxId,
    /// Which attempt.
    pub attempt: u32,
    /// Command and arguments; at least the program.
    pub command: Vec<String>,
    /// Longest run before the command is ended.
    #[serde(default = "exec_timeout_seconds")]
    pub timeout_seconds: u64,
}

impl Body for GuestExec {
    fn validate(&self) -> Result<(), FieldError> {
        check_exec(&self.command, self.timeout_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_providers_secret_crosses_no_network_in_the_clear() {
        let body = |address: &str| EnrolHost {
            id: "provider".parse().unwrap(),
            pool: "outside".parse().unwrap(),
            address: address.to_owned(),
            secret: Secret::new("s"),
        };
        for address in [
            "https://provider.example/base",
            "http://127.0.0.1:7171",
            "http://localhost:7171/",
            "http://[::1]:7171",
        ] {
            assert!(body(address).validate().is_ok(), "{address}");
        }
        for address in [
            "http://provider.example",
            "http://10.0.0.1:7171",
            "http://localhost.example",
            "http://127.0.0.1.example:80",
            "ftp://127.0.0.1",
        ] {
            let error = body(address).validate().unwrap_err();
            assert_eq!(error.field, "address", "{address}");
        }
        let hidden = EnrolHost { secret: Secret::new(""), ..body("https://a") };
        assert_eq!(hidden.validate().unwrap_err().field, "secret");
    }
}
