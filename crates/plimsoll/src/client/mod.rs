//! Commands that talk to a cell.

pub(crate) mod create;
pub(crate) mod decisions;
pub(crate) mod edit;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod fleet;
pub(crate) mod objects;
pub(crate) mod policy;
pub(crate) mod quota;
pub(crate) mod reservations;
pub(crate) mod sandboxes;
pub(crate) mod shapes;
pub(crate) mod tenants;
pub(crate) mod webhooks;

use clap::Args;
use plimsoll_api::{ListQuery, Page};
use plimsoll_client::Error;

use crate::failure::Failure;
use crate::show;

/// Most rows of one page.
const PAGE_MAX: usize = plimsoll_types::bounds::PAGE_LIMIT_MAX;

/// How much of a list.
#[derive(Args, Clone, Debug)]
pub(crate) struct Rows {
    /// Most rows to list
    #[arg(long, value_name = "ROWS", default_value_t = 1000)]
    pub(crate) limit: usize,
}

impl Rows {
    /// Reads pages until there are enough rows, and says on the error stream where there are more.
    ///
    /// # Errors
    /// When a page cannot be had.
    pub(crate) async fn collect<T>(
        &self,
        mut page: impl AsyncFnMut(ListQuery) -> Result<Page<T>, Error>,
    ) -> Result<Page<T>, Failure> {
        let mut all = Page { items: Vec::new(), next_cursor: None };
        loop {
            let left = self.limit.saturating_sub(all.items.len());
            if left == 0 {
                break;
            }
            let query =
                ListQuery { limit: Some(left.min(PAGE_MAX)), cursor: all.next_cursor.take() };
            let next = page(query).await?;
            all.items.extend(next.items);
            all.next_cursor = next.next_cursor;
            if all.next_cursor.is_none() {
                break;
            }
        }
        if all.next_cursor.is_some() && !show::wants_json() {
            show::say(&format!("there are more than {} rows: --limit shows more", self.limit));
        }
        Ok(all)
    }
}

/// Splits `name=value`.
///
/// # Errors
/// Says what is missing.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}
