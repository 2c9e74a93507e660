//! `hosts`, `drain`, `undrain` and `status`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use plimsoll_api::{EnrolHost, HostView};
use plimsoll_types::{HostId, PoolName};

use super::Rows;
use crate::connect::{As, Connect, Patience, key_in};
use crate::failure::Failure;
use crate::show::{self, Table, opt, yes};

/// Hosts: all of them, or one.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Hosts {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    rows: Rows,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Show one host
    Show(One),
    /// Forget a host that is dead and empty
    Rm(One),
    /// Say where a provider of an external pool is; it is asked for its report from then on
    Add(Add),
    /// End a guest that a host has and should not have
    EndGuest(EndGuest),
}

#[derive(Args, Clone, Debug)]
struct Add {
    /// The name that it gets as a host
    #[arg(value_name = "HOST")]
    host: HostId,
    /// Its pool, which has external=true
    #[arg(long, value_name = "POOL")]
    pool: PoolName,
    /// Base URL of its guest API; https unless it is on loopback
    #[arg(long, value_name = "URL")]
    address: String,
    /// File with what it is shown with each call; of an agent, its agent.secret
    #[arg(long, value_name = "FILE")]
    secret_file: std::path::PathBuf,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Clone, Debug)]
struct EndGuest {
    /// The host
    #[arg(value_name = "HOST")]
    host: HostId,
    /// The guest, as `plimsoll hosts show` names it
    #[arg(value_name = "GUEST")]
    guest: String,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Clone, Debug)]
struct One {
    /// The host
    #[arg(value_name = "HOST")]
    host: HostId,
    #[command(flatten)]
    connect: Connect,
}

impl Hosts {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        match self.action {
            Some(Action::Show(one)) => {
                let client = one.connect.client(As::Operator, Patience::Answers)?;
                print(&client.host(&one.host).await?)?;
            }
            Some(Action::Rm(one)) => {
                let client = one.connect.client(As::Operator, Patience::Answers)?;
                client.delete_host(&one.host).await?;
                show::say(&format!("host {} is forgotten", one.host));
            }
            Some(Action::Add(add)) => {
                let body = EnrolHost {
                    id: add.host,
                    pool: add.pool,
                    address: add.address,
                    secret: key_in(&add.secret_file)?,
                };
                let client = add.connect.client(As::Operator, Patience::Answers)?;
                print(&client.enrol_host(&body).await?)?;
            }
            Some(Action::EndGuest(end)) => {
                let client = end.connect.client(As::Operator, Patience::Answers)?;
                client.end_unexpected_guest(&end.host, &end.guest).await?;
                show::say(&format!("{} is told to end {}", end.host, end.guest));
            }
            None => self.list().await?,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn list(self) -> Result<(), Failure> {
        let client = self.connect.client(As::Operator, Patience::Answers)?;
        let page = self.rows.collect(async |page| client.hosts(&page).await).await?;
        if show::wants_json() {
            return show::json(&page);
        }
        let mut table = Table::new(&[
            "host",
            "pool",
            "status",
            "closed by",
            ">guests",
            ">total mib",
            ">admittable",
            ">pending",
            ">charged",
            ">resident",
            ">configured",
            ">starts",
            ">unexpected",
            "age",
        ]);
        for host in &page.items {
            table.row(vec![
                host.id.to_string(),
                host.pool.to_string(),
                word(&host.status),
                closed_by(host),
                host.guests.to_string(),
                host.memory_mib_total.to_string(),
                opt(host.memory_mib_admittable),
                host.pending_mib.to_string(),
                host.charged_mib.to_string(),
                host.resident_mib.to_string(),
                host.configured_mib.to_string(),
                starts(host),
                host.unexpected_guests.len().to_string(),
                opt(host.age_millis.map(show::length)),
            ]);
        }
        table.print()
    }
}

/// A word of the interface, as it stands in JSON.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        _ => String::new(),
    }
}

/// Why nothing new is placed on a host.
fn closed_by(host: &HostView) -> String {
    let standing = host.standing.map(|filter| filter.as_str().to_owned());
    match (standing, &host.not_admitting) {
        (Some(standing), Some(why)) if standing != *why => format!("{standing} ({why})"),
        (Some(standing), _) => standing,
        (None, why) => opt(why.as_ref()),
    }
}

fn starts(host: &HostView) -> String {
    let limit = host.starts_limit.map_or_else(|| "unbounded".to_owned(), |limit| limit.to_string());
    format!("{} of {limit}", host.starts_in_flight)
}

/// How far a host's clock is from the cell's.
fn clock(skew_millis: i64) -> String {
    let by = show::length(skew_millis.unsigned_abs());
    if skew_millis < 0 {
        format!("{by} behind the cell's")
    } else {
        format!("{by} ahead of the cell's")
    }
}

fn print(host: &HostView) -> Result<(), Failure> {
    if show::wants_json() {
        return show::json(host);
    }
    let pairs = |pairs: Vec<String>| pairs.join(" ");
    let labels = host.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let counted = host.counted.iter().map(|(name, free)| format!("{name}={free}")).collect();
    let mib = |value: u64| format!("{value} MiB");
    show::facts(&[
        ("host", host.id.to_string()),
        ("pool", host.pool.to_string()),
        ("status", word(&host.status)),
        ("closed by", closed_by(host)),
        ("last report", opt(host.age_millis.map(|age| format!("{} ago", show::length(age))))),
        ("its clock", opt(host.clock_skew_millis.map(clock))),
        ("address", opt(host.address.as_ref())),
        ("region", opt(host.region.as_ref())),
        ("labels", pairs(labels)),
        ("drivers", host.drivers.join(" ")),
        ("regime", host.memory_admission.to_string()),
        ("memory offered", mib(host.memory_mib_total)),
        ("memory used", mib(host.memory_mib_used)),
        ("admittable", opt(host.memory_mib_admittable.map(|mib| format!("{mib} MiB")))),
        ("pending", mib(host.pending_mib)),
        ("still to give", opt(host.effective_mib.map(|mib| format!("{mib} MiB")))),
        ("guests", host.guests.to_string()),
        ("charged", mib(host.charged_mib)),
        ("resident", mib(host.resident_mib)),
        ("configured", mib(host.configured_mib)),
        ("cpu", format!("{} of {} millis", host.cpu_millis_used, host.cpu_millis_total)),
        ("starts", starts(host)),
        ("counted, free", pairs(counted)),
        ("pressure", opt(host.pressure_bp.map(|bp| format!("{bp} basis points")))),
        ("draining", yes(host.draining)),
        ("failures in a row", host.failures_in_a_row.to_string()),
        ("set aside until", opt(host.set_aside_until)),
        ("unexpected guests", host.unexpected_guests.join(" ")),
        ("boot", opt(host.boot_id.as_ref())),
        ("incarnation", opt(host.incarnation)),
        ("sequence", opt(host.sequence)),
    ])
}

macro_rules! drains {
    ($($(#[$doc:meta])* $name:ident => $call:ident, $text:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Args, Clone, Debug)]
            pub(crate) struct $name {
                /// The host
                #[arg(value_name = "HOST")]
                host: HostId,
                #[command(flatten)]
                connect: Connect,
            }

            impl $name {
                pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
                    let client = self.connect.client(As::Operator, Patience::Answers)?;
                    let host = client.$call(&self.host).await?;
                    if show::wants_json() {
                        show::json(&host)?;
                    } else {
                        show::say(&format!($text, host.id, host.guests));
                    }
                    Ok(ExitCode::SUCCESS)
                }
            }
        )*
    };
}

drains! {
    /// Empties a host.
    Drain => drain_host, "host {} takes nothing new; {} guests on it run on";
    /// Takes a host back in.
    Undrain => undrain_host, "host {} takes sandboxes again; {} guests on it";
}

/// How the cell is.
#[derive(Args, Clone, Debug)]
pub(crate) struct Status {
    #[command(flatten)]
    connect: Connect,
}

impl Status {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.connect.client(As::Operator, Patience::Answers)?;
        let status = client.status().await?;
        if show::wants_json() {
            show::json(&status)?;
            return Ok(ExitCode::SUCCESS);
        }
        let counts = &status.counts;
        let violations: Vec<String> = counts
            .invariant_violations
            .iter()
            .map(|(id, count)| format!("{id}: {count}"))
            .collect();
        show::facts(&[
            ("cell", status.cell),
            ("version", status.version),
            ("role", word(&status.role)),
            ("epoch", opt(status.epoch)),
            ("store", status.store),
            ("up for", show::length(status.uptime_seconds.saturating_mul(1000))),
            ("hosts", format!("{}, {} of them ready", counts.hosts, counts.hosts_ready)),
            (
                "sandboxes",
                format!("{} live, {} queued", counts.sandboxes_live, counts.sandboxes_queued),
            ),
            ("reservations", counts.reservations_held.to_string()),
            ("pools", counts.pools.to_string()),
            ("tenants", counts.tenants.to_string()),
            ("invariants broken", violations.join(", ")),
        ])?;
        Ok(ExitCode::SUCCESS)
    }
}
