//! `explain`: the arithmetic, check by check and host by host.

use std::process::ExitCode;

use clap::Args;
use plimsoll_api::{Body as _, ExplainRequest, Explanation, ReserveRequest, Verdict};

use super::create::Shape;
use crate::connect::{As, Connect, Patience};
use crate::failure::Failure;
use crate::show::{self, Table, opt};

/// What a create would come to now; without a template, what a reservation would.
#[derive(Args, Clone, Debug)]
pub(crate) struct Explain {
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    connect: Connect,
}

impl Explain {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let request = request(self.shape)?;
        let client = self.connect.client(As::Viewer, Patience::Answers)?;
        let explanation = client.explain(&request).await?;
        if show::wants_json() {
            show::json(&explanation)?;
        } else {
            show::out(&text(&explanation))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn request(shape: Shape) -> Result<ExplainRequest, Failure> {
    let missing = || {
        Failure::usage("--template is missing")
            .hint("a reservation is explained with --memory-mib and --vcpus instead")
    };
    if shape.template.is_some() {
        let body = shape.body()?.ok_or_else(missing)?;
        return Ok(ExplainRequest::Create(Box::new(body)));
    }
    let (Some(memory_mib), Some(vcpus)) = (shape.memory_mib, shape.vcpus) else {
        return Err(missing());
    };
    let mut body = ReserveRequest::new("explain", memory_mib, vcpus);
    body.stateful = shape.stateful.unwrap_or(false);
    body.pool = shape.pool;
    body.priority = shape.priority;
    body.criticality = shape.criticality;
    body.validate()?;
    Ok(ExplainRequest::Reserve(body))
}

fn text(explanation: &Explanation) -> String {
    let verdict = match explanation.verdict {
        Verdict::Admit => "admit",
        Verdict::Queue => "queue",
        Verdict::Refuse => "refuse",
    };
    let mut text = format!("verdict: {verdict}");
    if let Some(code) = explanation.code {
        text.push_str(&format!(" ({code})"));
    }
    text.push_str(&format!("\n{}\n", show::clean(&explanation.detail)));
    if let Some(wait) = explanation.retry_after_millis {
        text.push_str(&format!("trying again makes sense in {}\n", show::length(wait)));
    }
    if let Some(host) = &explanation.host {
        text.push_str(&format!("host: {host}\n"));
    }
    let version = explanation.policy_version.map_or_else(
        || "the local policy".to_owned(),
        |version| format!("policy version {version}"),
    );
    text.push_str(&format!(
        "charge: {} MiB, under {version} in mode {}\n\n",
        explanation.charge_mib, explanation.policy_mode
    ));
    let mut checks =
        Table::new(&["check", "passes", ">used", ">incoming", ">limit", "code", "detail"]);
    for check in &explanation.checks {
        checks.row(vec![
            check.check.clone(),
            show::yes(check.passes),
            opt(check.used),
            opt(check.incoming),
            opt(check.limit),
            opt(check.code),
            check.detail.clone(),
        ]);
    }
    text.push_str(&checks.text());
    text.push('\n');
    let mut hosts =
        Table::new(&["host", "pool", "falls to", ">needs", ">admittable", ">score", "detail"]);
    for host in &explanation.hosts {
        hosts.row(vec![
            opt(host.host.as_ref()),
            host.pool.to_string(),
            host.filter.map_or_else(|| "candidate".to_owned(), |filter| filter.as_str().to_owned()),
            host.charge_mib.to_string(),
            opt(host.admittable_mib),
            host.score.to_string(),
            host.detail.clone(),
        ]);
    }
    text.push_str(&hosts.text());
    let more = u64::from(explanation.counts.hosts)
        .saturating_sub(u64::try_from(explanation.hosts.len()).unwrap_or(u64::MAX));
    if more > 0 {
        text.push_str(&format!("and {more} more hosts\n"));
    }
    text
}
