//! `webhooks`: where events are sent.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use plimsoll_api::{
    Body as _, CreateEndpoint, Delivery, DeliveryState, Endpoint, EndpointPatch, EventType,
};
use plimsoll_types::EndpointId;

use super::Rows;
use crate::connect::{As, Connect, Patience};
use crate::failure::Failure;
use crate::show::{self, Table, opt, yes};

/// Webhook endpoints.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Webhooks {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    rows: Rows,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Send events to a URL; prints the signing secret, which is shown this once
    Add(Add),
    /// Show one, as JSON
    Show(One),
    /// Change one
    Set(Set),
    /// Make a new signing secret and print it; the old one signs too for another day
    Rotate(One),
    /// Send a test event and say how it came out
    Test(One),
    /// Attempts to deliver, newest first
    Deliveries(Deliveries),
    /// Remove one
    Rm(One),
}

#[derive(Args, Clone, Debug)]
struct Add {
    /// Where to send
    #[arg(value_name = "URL")]
    to: String,
    /// Only these types, such as quota.warning; may be given more than once [default: all]
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    kinds: Vec<EventType>,
    /// For people
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Clone, Debug)]
struct One {
    /// The endpoint's id
    #[arg(value_name = "ID")]
    id: EndpointId,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Clone, Debug)]
struct Set {
    /// The endpoint's id
    #[arg(value_name = "ID")]
    id: EndpointId,
    /// Where to send from now on
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Only these types from now on
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    kinds: Vec<EventType>,
    /// For people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Whether anything is sent; switching one on that was given up on tries it anew
    #[arg(long, value_name = "BOOL")]
    enabled: Option<bool>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Args, Clone, Debug)]
struct Deliveries {
    #[command(flatten)]
    rows: Rows,
    #[command(flatten)]
    one: One,
}

impl Webhooks {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        match self.action {
            Some(Action::Add(add)) => {
                let body =
                    CreateEndpoint { url: add.to, events: add.kinds, description: add.description };
                body.validate()?;
                let client = add.connect.client(As::Tenant, Patience::Answers)?;
                let made = client.create_endpoint(&body).await?;
                if show::wants_json() {
                    show::json(&made)?;
                } else {
                    show::out(&format!("{}\n", made.secret.expose()))?;
                    show::say(&format!(
                        "{} is sent to {}; its secret is shown this once",
                        made.info.id, made.info.url
                    ));
                }
            }
            Some(Action::Show(one)) => {
                let client = one.connect.client(As::Tenant, Patience::Answers)?;
                show::json(&client.endpoint(one.id).await?)?;
            }
            Some(Action::Set(set)) => {
                let body = EndpointPatch {
                    url: set.to,
                    events: (!set.kinds.is_empty()).then_some(set.kinds),
                    description: set.description,
                    enabled: set.enabled,
                    rotate_secret: false,
                };
                body.validate()?;
                let client = set.connect.client(As::Tenant, Patience::Answers)?;
                show::json(&client.patch_endpoint(set.id, &body).await?)?;
            }
            Some(Action::Rotate(one)) => {
                let client = one.connect.client(As::Tenant, Patience::Answers)?;
                let body = EndpointPatch { rotate_secret: true, ..EndpointPatch::default() };
                let changed = client.patch_endpoint(one.id, &body).await?;
                if show::wants_json() {
                    show::json(&changed)?;
                } else if let Some(secret) = &changed.secret {
                    show::out(&format!("{}\n", secret.expose()))?;
                    show::say(
                        "the new secret is shown this once; for 24 hours the old one signs too",
                    );
                }
            }
            Some(Action::Test(one)) => return test(&one).await,
            Some(Action::Deliveries(of)) => of.run().await?,
            Some(Action::Rm(one)) => {
                let client = one.connect.client(As::Tenant, Patience::Answers)?;
                client.delete_endpoint(one.id).await?;
                show::say(&format!("endpoint {} is gone", one.id));
            }
            None => {
                let client = self.connect.client(As::Tenant, Patience::Answers)?;
                let page = self.rows.collect(async |page| client.endpoints(&page).await).await?;
                if show::wants_json() {
                    show::json(&page)?;
                    return Ok(ExitCode::SUCCESS);
                }
                let mut table =
                    Table::new(&["endpoint", "url", "types", "on", "failing since", "reason"]);
                page.items.iter().for_each(|one| table.row(cells(one)));
                table.print()?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn cells(one: &Endpoint) -> Vec<String> {
    let types = if one.events.is_empty() { "all".to_owned() } else { one.events.join(", ") };
    vec![
        one.id.to_string(),
        one.url.clone(),
        types,
        yes(one.enabled),
        opt(one.failing_since),
        opt(one.disabled_reason.as_ref()),
    ]
}

/// An event that was not taken is no success: scripts see it.
async fn test(one: &One) -> Result<ExitCode, Failure> {
    let client = one.connect.client(As::Tenant, Patience::Answers)?;
    let delivery = client.test_endpoint(one.id).await?;
    if show::wants_json() {
        show::json(&delivery)?;
    }
    if delivery.state == DeliveryState::Delivered {
        show::say(&format!("{} was taken with status {}", one.id, opt(delivery.last_status)));
        return Ok(ExitCode::SUCCESS);
    }
    let why = delivery.last_error.unwrap_or_else(|| "no reason is known".to_owned());
    Err(Failure::refused(format!("the test event was not taken: {why}")))
}

impl Deliveries {
    async fn run(self) -> Result<(), Failure> {
        let client = self.one.connect.client(As::Tenant, Patience::Answers)?;
        let id = self.one.id;
        let page = self.rows.collect(async |page| client.deliveries(id, &page).await).await?;
        if show::wants_json() {
            return show::json(&page);
        }
        let mut table =
            Table::new(&["event", "type", "state", ">attempts", "last", "status", "next", "error"]);
        page.items.iter().for_each(|one| table.row(attempt(one)));
        table.print()
    }
}

fn attempt(one: &Delivery) -> Vec<String> {
    let state = match one.state {
        DeliveryState::Pending => "pending",
        DeliveryState::Delivered => "delivered",
        DeliveryState::Failed => "failed",
    };
    vec![
        one.event_id.to_string(),
        one.kind.clone(),
        state.to_owned(),
        one.attempts.to_string(),
        opt(one.last_attempt_at),
        opt(one.last_status),
        opt(one.next_attempt_at),
        opt(one.last_error.as_ref()),
    ]
}
