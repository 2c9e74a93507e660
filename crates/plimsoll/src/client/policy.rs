//! `policy`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use plimsoll_api::{Envelope, PolicyView, parse};

use crate::connect::{As, Connect, Patience, read};
use crate::failure::Failure;
use crate::show::{self, Table, limit, opt};

/// Policy snapshots.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Policy {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Hand a signed policy snapshot to the cell
    Put(Put),
}

#[derive(Args, Clone, Debug)]
struct Put {
    /// File with the signed envelope
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    connect: Connect,
}

impl Policy {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        match self.action {
            Some(Action::Put(put)) => {
                let text = read(&put.file, "the envelope")?;
                let envelope: Envelope = parse(text.as_bytes())?;
                let client = put.connect.client(As::Operator, Patience::Answers)?;
                print(&[client.put_policy(&envelope).await?])?;
            }
            None => {
                let client = self.connect.client(As::Operator, Patience::Answers)?;
                print(&client.policies().await?.items)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(views: &[PolicyView]) -> Result<(), Failure> {
    if show::wants_json() {
        return show::json(&serde_json::json!({ "items": views }));
    }
    let mut table = Table::new(&[
        "pool",
        "policy",
        "mode",
        "age",
        ">ratio bp",
        ">share bp",
        ">budget mib",
        ">promised mib",
    ]);
    for view in views {
        let snapshot = view.snapshot.as_ref();
        table.row(vec![
            view.pool.to_string(),
            snapshot.map_or_else(|| "local".to_owned(), |snapshot| snapshot.version.to_string()),
            view.mode.to_string(),
            opt(view.age_seconds.map(|age| show::length(age.saturating_mul(1000)))),
            opt(snapshot.map(|snapshot| snapshot.overcommit_ratio_bp)),
            opt(snapshot.map(|snapshot| snapshot.cell_share_bp)),
            limit(view.budget_mib),
            view.promised_mib.to_string(),
        ]);
    }
    table.print()
}
