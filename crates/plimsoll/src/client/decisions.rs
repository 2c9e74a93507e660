//! `decisions`: the log, or one of it.

use std::process::ExitCode;

use clap::Args;
use plimsoll_api::{DecisionQuery, DecisionView, Time, Verdict};
use plimsoll_types::{DecisionId, HostFilter, RefusalCode};

use super::Rows;
use crate::connect::{As, Connect, Patience};
use crate::failure::Failure;
use crate::show::{self, Table, limit, opt, yes};

/// The decision log.
#[derive(Args, Clone, Debug)]
pub(crate) struct Decisions {
    /// One decision, with the counts that led to it
    #[arg(value_name = "ID")]
    id: Option<DecisionId>,
    /// Only refusals with this code
    #[arg(long, value_name = "CODE", value_parser = code)]
    code: Option<RefusalCode>,
    /// Not before this time, as RFC 3339 has it
    #[arg(long, value_name = "TIME")]
    from: Option<Time>,
    /// Before this time
    #[arg(long, value_name = "TIME")]
    to: Option<Time>,
    #[command(flatten)]
    rows: Rows,
    #[command(flatten)]
    connect: Connect,
}

fn code(text: &str) -> Result<RefusalCode, String> {
    text.parse().map_err(|()| {
        let codes: Vec<&str> = RefusalCode::ALL.iter().map(|code| code.as_str()).collect();
        format!("expected one of {}", codes.join(", "))
    })
}

impl Decisions {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.connect.client(As::Operator, Patience::Answers)?;
        if let Some(id) = self.id {
            print(&client.decision(id).await?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let query = |page| DecisionQuery {
            page,
            tenant: self.connect.tenant.clone(),
            code: self.code,
            from: self.from,
            to: self.to,
        };
        let page = self.rows.collect(async |page| client.decisions(&query(page)).await).await?;
        if show::wants_json() {
            show::json(&page)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new(&[
            "decision",
            "at",
            "tenant",
            "verb",
            "verdict",
            "pool",
            "host",
            ">mib",
            ">charge",
            "hosts by filter",
        ]);
        for decision in &page.items {
            table.row(vec![
                decision.id.to_string(),
                decision.at.to_string(),
                decision.tenant.to_string(),
                decision.verb.clone(),
                verdict(decision),
                opt(decision.pool.as_ref()),
                opt(decision.host.as_ref()),
                decision.memory_mib.to_string(),
                decision.charge_mib.to_string(),
                filters(decision),
            ]);
        }
        table.print()?;
        Ok(ExitCode::SUCCESS)
    }
}

fn verdict(decision: &DecisionView) -> String {
    match (decision.verdict, decision.code) {
        (Verdict::Admit, _) => "admit".to_owned(),
        (Verdict::Queue, _) => "queue".to_owned(),
        (Verdict::Refuse, Some(code)) => code.to_string(),
        (Verdict::Refuse, None) => "refuse".to_owned(),
    }
}

/// Hosts that were no candidates, by why.
fn filters(decision: &DecisionView) -> String {
    let counts = &decision.counts;
    if counts.hosts == 0 {
        // An admission asks the index for one host and counts none; a refusal by a tenant's limit
        // is made before hosts are looked at.
        let why = match decision.verdict {
            Verdict::Admit | Verdict::Queue => "not counted: it was let in",
            Verdict::Refuse => "none looked at",
        };
        return why.to_owned();
    }
    let mut parts = vec![format!("{} of {} fit", counts.candidates, counts.hosts)];
    let fallen = HostFilter::ALL.into_iter().map(|filter| (filter, counts.of(filter)));
    parts.extend(
        fallen
            .filter(|(_, hosts)| *hosts > 0)
            .map(|(filter, hosts)| format!("{hosts} {}", filter.as_str())),
    );
    parts.join(", ")
}

fn print(decision: &DecisionView) -> Result<(), Failure> {
    if show::wants_json() {
        return show::json(decision);
    }
    let slots =
        decision.slots_held.map(|held| format!("{held} held of {}", limit(decision.slots_limit)));
    show::facts(&[
        ("decision", decision.id.to_string()),
        ("at", decision.at.to_string()),
        ("tenant", decision.tenant.to_string()),
        ("verb", decision.verb.clone()),
        ("verdict", verdict(decision)),
        ("detail", opt(decision.detail.as_ref())),
        ("object", opt(decision.object.as_ref())),
        ("pool", opt(decision.pool.as_ref())),
        ("host", opt(decision.host.as_ref())),
        ("memory", format!("{} MiB", decision.memory_mib)),
        ("vcpus", decision.vcpus.to_string()),
        ("stateful", yes(decision.stateful)),
        ("charge", format!("{} MiB", decision.charge_mib)),
        ("items", decision.items.to_string()),
        ("policy", opt(decision.policy_version.map(|version| format!("version {version}")))),
        ("policy mode", decision.policy_mode.to_string()),
        ("hosts", filters(decision)),
        ("slots", opt(slots)),
    ])
}
