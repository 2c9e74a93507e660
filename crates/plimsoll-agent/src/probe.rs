//! What the machine and its guests use, read from `/proc` and control groups.
//!
//! Three rules hold here. A value that cannot be read is [`Unknown`] with its reason and never
//! zero: a zero admits guests. Parsing is pure over text, in integers, and never panics, whatever
//! the text. Each figure says by which method it was taken, since the methods differ in what they
//! count.

mod cgroup;
mod machine;
mod processes;

pub use cgroup::{GuestCgroup, Hierarchies, parse_cgroup_mounts, parse_flat_keyed};
pub use machine::{
    CpuTicks, MachineMemory, MachineProbe, MachineSample, Pressure, boot_id, cpu_used,
    parse_cpu_ticks, parse_meminfo, parse_pressure, parse_uptime_millis, uptime_millis,
};
pub(crate) use processes::is_open_anywhere;
pub use processes::{
    Membership, ProcessId, ProcessStat, ProcessTable, cpu_millis_of, parse_pss_bytes,
    parse_resident_pages, parse_stat, resident_bytes,
};

/// A value that could not be read, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is unknown: {why}")]
pub struct Unknown {
    /// Which value.
    pub what: &'static str,
    /// Why, for people.
    pub why: String,
}

impl Unknown {
    pub(crate) fn new(what: &'static str, why: impl std::fmt::Display) -> Self {
        Self { what, why: why.to_string() }
    }
}

/// A value, or why there is none.
pub type Reading<T> = Result<T, Unknown>;

/// How a guest's memory was measured.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum MemoryMethod {
    /// `memory.current` less inactive file pages of a version 2 control group.
    CgroupV2,
    /// `memory.usage_in_bytes` less inactive file pages of a version 1 control group.
    CgroupV1,
    /// Sum of proportional set sizes over the guest's processes: shared pages are split among
    /// those that map them, page cache that nobody maps is left out.
    Pss,
    /// Sum of resident set sizes, where the kernel gives no proportional ones: shared pages are
    /// counted once per process, so this errs upwards.
    Rss,
    /// Made up by the simulated driver.
    Simulated,
}

impl MemoryMethod {
    /// The word for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CgroupV2 => "cgroup_v2",
            Self::CgroupV1 => "cgroup_v1",
            Self::Pss => "pss",
            Self::Rss => "rss",
            Self::Simulated => "simulated",
        }
    }
}

/// Memory of one guest and how it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Bytes in use that the kernel could not reclaim by dropping clean, unused file pages.
    pub bytes: u64,
    /// By which method.
    pub method: MemoryMethod,
}
