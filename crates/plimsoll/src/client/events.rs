//! `events`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use plimsoll_api::{Event, EventQuery, EventType, ListQuery};
use plimsoll_types::EventId;

use super::{PAGE_MAX, Rows};
use crate::connect::{As, Connect, Patience};
use crate::failure::Failure;
use crate::show::{self, Table, opt};

/// Between two questions of `--follow`: events are for people, who do not see a second.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// Events.
#[derive(Args, Clone, Debug)]
pub(crate) struct Events {
    /// Only events after this one
    #[arg(long, value_name = "ID")]
    after: Option<EventId>,
    /// Only these types, such as sandbox.preempted; may be given more than once
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    kinds: Vec<EventType>,
    /// Go on as events happen, until stopped; with --json, one object on each line
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    rows: Rows,
    #[command(flatten)]
    connect: Connect,
}

impl Events {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.connect.client(As::Viewer, Patience::Answers)?;
        if !self.follow {
            let query = |page| EventQuery { page, after: self.after, kinds: self.kinds.clone() };
            let page = self.rows.collect(async |page| client.events(&query(page)).await).await?;
            if show::wants_json() {
                show::json(&page)?;
                return Ok(ExitCode::SUCCESS);
            }
            let mut table = Table::new(&["event", "at", "type", "tenant", "data"]);
            for event in &page.items {
                table.row(cells(event));
            }
            table.print()?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut after = self.after;
        loop {
            let page = ListQuery { limit: Some(PAGE_MAX), cursor: None };
            let query = EventQuery { page, after, kinds: self.kinds.clone() };
            let page = client.events(&query).await?;
            for event in &page.items {
                show::out(&line(event)?)?;
                after = Some(event.id);
            }
            if page.items.is_empty() {
                tokio::time::sleep(FOLLOW_EVERY).await;
            }
        }
    }
}

fn cells(event: &Event) -> Vec<String> {
    vec![
        event.id.to_string(),
        event.at.to_string(),
        event.kind.clone(),
        opt(event.tenant.as_ref()),
        event.data.to_string(),
    ]
}

fn line(event: &Event) -> Result<String, Failure> {
    if show::wants_json() {
        let text = serde_json::to_string(event)
            .map_err(|error| Failure::refused(format!("the event makes no JSON: {error}")))?;
        return Ok(text + "\n");
    }
    let words: Vec<String> = cells(event).into_iter().skip(1).collect();
    Ok(show::clean(&words.join("  ")).replace('\n', " ") + "\n")
}
