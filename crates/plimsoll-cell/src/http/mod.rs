//! The HTTP side that is the same for every route: who calls, what a body may be, how an answer
//! looks.

mod body;
mod listen;
mod reply;
mod who;

pub(crate) use body::{Query, raw_body, read, read_optional, whole_body};
pub use listen::ServeError;
pub(crate) use listen::Server;
pub(crate) use reply::{Answered, Reject, json, no_content, page, with_decision};
pub(crate) use who::{Host, Operator, Tenant};
