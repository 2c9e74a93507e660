//! `quota` and `usage`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use plimsoll_api::{BurstUsage, QuotaView, Time, UsageGroup, UsageQuery, UsedOf};

use super::Rows;
use crate::connect::{As, Connect, Patience};
use crate::failure::Failure;
use crate::show::{self, Table, bar, opt};

/// Limits and what is used of them.
#[derive(Args, Clone, Debug)]
pub(crate) struct Quota {
    #[command(flatten)]
    connect: Connect,
}

impl Quota {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.connect.client(As::Tenant, Patience::Answers)?;
        let quota = client.quota().await?;
        if show::wants_json() {
            show::json(&quota)?;
        } else {
            show::out(&text(&quota))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn text(quota: &QuotaView) -> String {
    let state = serde_json::to_value(quota.state).ok();
    let state = state.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default();
    let mut text = format!(
        "plan {}, period {} until {}, state {state}\n",
        quota.plan, quota.period, quota.resets_at
    );
    if let Some(at) = quota.deletes_at {
        text.push_str(&format!("resources are deleted at {at}\n"));
    }
    let mut line = |name: &str, value: String| text.push_str(&format!("  {name:22}{value}\n"));
    let alive = &quota.concurrency;
    line("sandboxes", burst(alive.sandboxes));
    line("vcpus", burst(alive.vcpus));
    line("memory_mib", burst(alive.memory_mib));
    let used = &quota.consumption;
    for (name, of) in [
        ("cpu_seconds", used.cpu_seconds),
        ("gib_hours", used.gib_hours),
        ("egress_bytes", used.egress_bytes),
    ] {
        let UsedOf { used, limit } = of;
        line(name, bar(used, limit));
    }
    for (name, tokens) in &quota.rate {
        let left = match (tokens.left, tokens.limit) {
            (Some(left), Some(limit)) => format!("{} left", bar(left, Some(limit))),
            _ => "unlimited".to_owned(),
        };
        line(name, left);
    }
    if !quota.top_consumers.is_empty() {
        text.push_str("top consumers of the period\n");
    }
    for one in &quota.top_consumers {
        text.push_str(&format!(
            "  {:32}{} cpu seconds, {}.{:03} GiB-hours\n",
            one.id,
            one.cpu_seconds,
            one.gib_hours,
            one.gib_hours_thousandths % 1000
        ));
    }
    text
}

fn burst(usage: BurstUsage) -> String {
    let mut text = bar(usage.used, usage.limit);
    if let (Some(limit), Some(burst)) = (usage.limit, usage.burst_limit)
        && burst > limit
    {
        text.push_str(&format!(", burst to {burst}"));
        if let Some(left) = usage.burst_seconds_left {
            text.push_str(&format!(" for {}", show::length(left.saturating_mul(1000))));
        }
    }
    text
}

/// Metered use.
#[derive(Args, Clone, Debug)]
pub(crate) struct Usage {
    /// Not before this time, as RFC 3339 has it [default: the start of the period]
    #[arg(long, value_name = "TIME")]
    from: Option<Time>,
    /// Before this time [default: now]
    #[arg(long, value_name = "TIME")]
    to: Option<Time>,
    /// By what to sum up
    #[arg(long, value_enum, default_value = "total")]
    group_by: Group,
    #[command(flatten)]
    rows: Rows,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Group {
    /// One row for each sandbox
    Sandbox,
    /// One row for each UTC day
    Day,
    /// One row
    Total,
}

impl Usage {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let group_by = match self.group_by {
            Group::Sandbox => UsageGroup::Sandbox,
            Group::Day => UsageGroup::Day,
            Group::Total => UsageGroup::Total,
        };
        let client = self.connect.client(As::Tenant, Patience::Answers)?;
        let query = |page| UsageQuery {
            page,
            from: self.from,
            to: self.to,
            group_by,
            tenant: self.connect.tenant.clone(),
        };
        let page = self.rows.collect(async |page| client.usage(&query(page)).await).await?;
        if show::wants_json() {
            show::json(&page)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new(&[
            "tenant",
            "id",
            "from",
            "to",
            ">cpu seconds",
            ">gib hours",
            ">egress bytes",
        ]);
        for row in &page.items {
            table.row(vec![
                row.tenant.to_string(),
                opt(row.id.as_ref()),
                row.from.to_string(),
                row.to.to_string(),
                row.cpu_seconds.to_string(),
                row.gib_hours.to_string(),
                row.egress_bytes.to_string(),
            ]);
        }
        table.print()?;
        Ok(ExitCode::SUCCESS)
    }
}
