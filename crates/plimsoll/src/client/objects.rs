//! Commands that list, show, make, change and remove objects of one kind.

/// Declares a command group over one kind of object. `columns` and `row` make the list.
macro_rules! group {
    (
        $(#[$doc:meta])* $group:ident, $what:literal, $id:ty, $field:literal,
        $make:ty, $patch:ty, $object:ty:
        $create:ident, $list:ident, $get:ident, $change:ident, $remove:ident;
        columns $columns:expr; row $row:expr;
    ) => {
        $(#[$doc])*
        #[derive(clap::Args, Clone, Debug)]
        #[command(args_conflicts_with_subcommands = true)]
        pub(crate) struct $group {
            #[command(subcommand)]
            action: Option<group::Action>,
            #[command(flatten)]
            rows: $crate::client::Rows,
            #[command(flatten)]
            connect: $crate::connect::Connect,
        }

        impl $group {
            pub(crate) async fn run(
                self,
            ) -> Result<std::process::ExitCode, $crate::failure::Failure> {
                use $crate::connect::{As, Patience};
                use $crate::show;
                use group::Action;

                const ANSWERS: Patience = Patience::Answers;
                let done = Ok(std::process::ExitCode::SUCCESS);
                match self.action {
                    Some(Action::Show(one)) => {
                        let id: $id = group::id(&one.name)?;
                        let client = one.connect.client(As::Operator, ANSWERS)?;
                        show::json(&client.$get(&id).await?)?;
                    }
                    Some(Action::Create(edit)) => {
                        let body: $make = edit.fields.body(Some(($field, &edit.name)))?;
                        let client = edit.connect.client(As::Operator, ANSWERS)?;
                        show::json(&client.$create(&body).await?)?;
                    }
                    Some(Action::Set(edit)) => {
                        let id: $id = group::id(&edit.name)?;
                        let body: $patch = edit.fields.body(None)?;
                        let client = edit.connect.client(As::Operator, ANSWERS)?;
                        show::json(&client.$change(&id, &body).await?)?;
                    }
                    Some(Action::Rm(one)) => {
                        let id: $id = group::id(&one.name)?;
                        let client = one.connect.client(As::Operator, ANSWERS)?;
                        client.$remove(&id).await?;
                        show::say(&format!(concat!($what, " {} is gone"), id));
                    }
                    None => {
                        let client = self.connect.client(As::Operator, ANSWERS)?;
                        let page =
                            self.rows.collect(async |page| client.$list(&page).await).await?;
                        if show::wants_json() {
                            show::json(&page)?;
                            return done;
                        }
                        let mut table = show::Table::new($columns);
                        let row: fn(&$object) -> Vec<String> = $row;
                        page.items.iter().for_each(|object| table.row(row(object)));
                        table.print()?;
                    }
                }
                done
            }
        }
    };
}

pub(crate) use group;

use clap::{Args, Subcommand};

use super::edit::Fields;
use crate::connect::Connect;
use crate::failure::Failure;

/// What is done with an object.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Action {
    /// Show one, as JSON
    Show(One),
    /// Make one; shows it
    Create(Edit),
    /// Change fields of one; shows it
    Set(Edit),
    /// Remove one
    Rm(One),
}

/// One object.
#[derive(Args, Clone, Debug)]
pub(crate) struct One {
    /// Its name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// Fields of one object.
#[derive(Args, Clone, Debug)]
pub(crate) struct Edit {
    /// Its name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) fields: Fields,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// Reads a name.
///
/// # Errors
/// When it is none.
pub(crate) fn id<T: std::str::FromStr<Err: std::fmt::Display>>(name: &str) -> Result<T, Failure> {
    name.parse().map_err(|error| Failure::usage(format!("{name:?}: {error}")))
}
