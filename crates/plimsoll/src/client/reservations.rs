//! `reserve`, `commit`, `renew` and `release`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use plimsoll_api::{
    Body as _, CommitReservation, RenewReservation, Reservation, ReserveMode, ReserveRequest,
};
use plimsoll_types::{Criticality, PoolName, ReservationId};

use crate::connect::{As, Connect, Patience};
use crate::failure::Failure;
use crate::show::{self, opt};

/// Reserves room.
#[derive(Args, Clone, Debug)]
pub(crate) struct Reserve {
    /// Your own key: the same key and figures give the same reservation
    #[arg(long, value_name = "TEXT")]
    key: String,
    /// Configured memory in MiB
    #[arg(long, value_name = "MIB")]
    memory_mib: u64,
    /// Virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 1)]
    vcpus: u64,
    /// Its state must never be lost: it is charged in full
    #[arg(long)]
    stateful: bool,
    /// The pool [default: the cell's]
    #[arg(long, value_name = "NAME")]
    pool: Option<PoolName>,
    /// Priority from -1000 to 1000; higher is served first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// How much it matters when the fleet must shed: critical, standard or sheddable
    #[arg(long, value_name = "WORD", default_value_t = Criticality::Standard)]
    criticality: Criticality,
    /// What to do
    #[arg(long, value_enum, default_value = "reject")]
    mode: Mode,
    /// Seconds that it holds without a commit [default: the pool's, 60]
    #[arg(long, value_name = "SECONDS")]
    ttl_seconds: Option<u64>,
    /// Mode wait: seconds to wait for room [default: 60]
    #[arg(long, value_name = "SECONDS")]
    wait_seconds: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// Answer no where there is no room
    Reject,
    /// Wait for room
    Wait,
    /// Answer as reject would, and hold nothing
    #[value(name = "dry_run", alias = "dry-run")]
    DryRun,
}

impl Reserve {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let body = ReserveRequest {
            key: self.key,
            memory_mib: self.memory_mib,
            vcpus: self.vcpus,
            stateful: self.stateful,
            pool: self.pool,
            priority: self.priority,
            criticality: self.criticality,
            mode: match self.mode {
                Mode::Reject => ReserveMode::Reject,
                Mode::Wait => ReserveMode::Wait,
                Mode::DryRun => ReserveMode::DryRun,
            },
            ttl_seconds: self.ttl_seconds,
            wait_seconds: self.wait_seconds,
        };
        body.validate()?;
        let client = self.connect.client(As::Tenant, Patience::Waits)?;
        if body.mode == ReserveMode::DryRun {
            let dry = client.reserve_dry_run(&body).await?;
            if show::wants_json() {
                show::json(&dry)?;
            } else {
                show::facts(&[
                    ("would go to", dry.host.to_string()),
                    ("pool", dry.pool.to_string()),
                    ("charge", format!("{} MiB", dry.charge_mib)),
                    ("decision", dry.decision_id.to_string()),
                ])?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        print(&client.reserve(&body).await?)
    }
}

/// Commits a reservation.
#[derive(Args, Clone, Debug)]
pub(crate) struct Commit {
    /// The reservation
    #[arg(value_name = "ID")]
    id: ReservationId,
    /// The guest's control group on its host, which is then measured [default: charged in full]
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

impl Commit {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let body = CommitReservation { cgroup: self.cgroup };
        body.validate()?;
        let client = self.connect.client(As::Tenant, Patience::Answers)?;
        print(&client.commit_reservation(self.id, &body).await?)
    }
}

/// Renews a reservation.
#[derive(Args, Clone, Debug)]
pub(crate) struct Renew {
    /// The reservation
    #[arg(value_name = "ID")]
    id: ReservationId,
    /// Seconds from now [default: what it was made with]
    #[arg(long, value_name = "SECONDS")]
    ttl_seconds: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

impl Renew {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let body = RenewReservation { ttl_seconds: self.ttl_seconds };
        body.validate()?;
        let client = self.connect.client(As::Tenant, Patience::Answers)?;
        print(&client.renew_reservation(self.id, &body).await?)
    }
}

/// Releases a reservation.
#[derive(Args, Clone, Debug)]
pub(crate) struct Release {
    /// The reservation
    #[arg(value_name = "ID")]
    id: ReservationId,
    #[command(flatten)]
    connect: Connect,
}

impl Release {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.connect.client(As::Tenant, Patience::Answers)?;
        print(&client.release_reservation(self.id).await?)
    }
}

fn print(reservation: &Reservation) -> Result<ExitCode, Failure> {
    if show::wants_json() {
        show::json(reservation)?;
        return Ok(ExitCode::SUCCESS);
    }
    let state = serde_json::to_value(reservation.state).ok();
    let state = state.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default();
    show::facts(&[
        ("id", reservation.id.to_string()),
        ("key", reservation.key.clone()),
        ("state", state.to_owned()),
        ("host", reservation.host.to_string()),
        ("pool", reservation.pool.to_string()),
        ("charge", format!("{} MiB", reservation.charge_mib)),
        ("expires", opt(reservation.expires_at)),
        ("generation", reservation.generation.to_string()),
        ("decision", reservation.decision_id.to_string()),
    ])?;
    Ok(ExitCode::SUCCESS)
}
