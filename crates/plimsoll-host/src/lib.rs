//! The host's state machine: charges, decay, admittable, start semaphore, pressure. Pure.
//!
//! A [`Host`] takes one [`HostInput`] at a time and says what has to be done as [`HostEffect`]s.
//! It reads no clock, opens no socket and draws no randomness: the agent drives it on a machine,
//! the simulator in virtual time.
//!
//! What holds, whatever comes in:
//! - No guest is started or restored that the gate does not fit; the gate is the cell's own filter
//!   ([`plimsoll_policy::fit::filter`]) over the figures that the host publishes.
//! - A command is acted on once. One that is older than what a report has accounted for, of an
//!   older epoch, or past its deadline, is not acted on at all.
//! - Everything that is begun stands in the journal before it begins.
//! - Pressure never touches a stateful guest.
//! - A value that could not be read is absent with its reason, and the host admits nothing.
//!
//! ```
//! use plimsoll_host::{Host, HostConfig, HostEffect, HostInput, HostTime};
//! use plimsoll_types::{HostId, PoolName};
//!
//! let name = HostId::new("host-1").expect("a name");
//! let pool = PoolName::new("local").expect("a name");
//! let mut host = Host::new(HostConfig::new(name, pool, "boot-1".into(), "machine-1".into()));
//! let mut effects = Vec::new();
//! let now = HostTime::default();
//! host.handle(now, HostInput::Adopted { found: vec![], foreign: vec![] }, &mut effects);
//! host.handle(now, HostInput::Registered { incarnation: 1 }, &mut effects);
//! assert!(matches!(effects.last(), Some(HostEffect::HeartbeatNow)));
//! let report = host.report(now);
//! assert_eq!(report.memory_mib_admittable, None);
//! assert_eq!(report.not_admitting.as_deref(), Some("not measured yet"));
//! ```

mod adopt;
mod beat;
mod command;
mod config;
mod effect;
mod ended;
mod fence;
mod guest;
mod host;
mod input;
mod journal;
mod ledger;
mod relief;
mod report;
mod time;

pub use config::HostConfig;
pub use effect::{CallId, DriverCall, DriverOp, HostEffect, HostEvent};
pub use host::Host;
pub use input::{
    DriverResult, Found, FoundState, GuestSample, HostInput, Reading, ReservationSample, Sample,
    Token,
};
pub use journal::{Act, JournalEntry, Kept};
pub use ledger::Account;
pub use time::HostTime;
