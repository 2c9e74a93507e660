//! Calls to hosts: commands, fresh questions, and what comes back.

mod calls;

pub(crate) use calls::Calls;
