//! The one table of what the integer fields of bodies may hold.

use std::fmt;

use plimsoll_types::bounds;

/// Most MiB of one host that a report may state: 1 PiB, above any machine of today; sums over a
/// million hosts stay within 64 bits.
const HOST_MEMORY_MIB_MAX: i128 = 1 << 30;
/// Most core-milliseconds per second of one host: 65 536 cores.
const HOST_CPU_MILLIS_MAX: i128 = 65_536_000;
/// Largest limit of a plan, count of a resource or counter of a report: exact also in readers that hold numbers as
/// doubles.
const COUNT_MAX: i128 = (1 << 53) - 1;
/// Most starts at once of one host: a guess above any machine, so that sums stay far from the edge.
const STARTS_MAX: i128 = 1_000_000;
/// Longest setting of a pool in seconds: ten years, as lifecycle limits.
const SETTING_SECONDS_MAX: i128 = bounds::LIFECYCLE_SECONDS_MAX as i128;
/// Longest command run in a guest through `exec`, in seconds: an hour; what runs longer belongs in
/// the guest's own command.
const EXEC_SECONDS_MAX: i128 = 3600;

/// What an integer field may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// From the first to the second, both included.
    Range(i128, i128),
    /// -1 for off, or from the first to the second.
    OffOr(i128, i128),
}

/// What a lifecycle limit may hold.
pub(crate) const LIFECYCLE_BOUND: Bound =
    Bound::OffOr(bounds::LIFECYCLE_SECONDS_MIN as i128, bounds::LIFECYCLE_SECONDS_MAX as i128);

impl Bound {
    /// The bound of the field at `path`, by its last name and, where two bodies use one name for
    /// two things, by the name before it. `None` where the field is no bounded integer.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let mut parts = path.rsplit('.');
        let name = parts.next().unwrap_or_default();
        let parent = parts.next().unwrap_or_default();
        let parent = parent.split('[').next().unwrap_or_default();
        if parent == "counted" {
            return Some(Self::Range(0, COUNT_MAX));
        }
        if parent == "lifecycle" && name.ends_with("_seconds") {
            return Some(LIFECYCLE_BOUND);
        }
        let bound = match name {
            "memory_mib" => Self::Range(1, bounds::MEMORY_MIB_MAX.into()),
            "overhead_mib" | "resident_mib" | "charge_mib" | "floor_mib" => {
                Self::Range(0, bounds::MEMORY_MIB_MAX.into())
            }
            "vcpus" => Self::Range(1, bounds::VCPUS_MAX.into()),
            "priority" => Self::Range((-bounds::PRIORITY_MAX).into(), bounds::PRIORITY_MAX.into()),
            "wait_seconds" => Self::Range(0, bounds::WAIT_SECONDS_MAX.into()),
            "timeout_seconds" => Self::Range(1, EXEC_SECONDS_MAX),
            "ttl_seconds" => Self::Range(1, bounds::RESERVATION_TTL_SECONDS_MAX.into()),
            "fraction_bp" => Self::Range(0, 10_000),
            "max_vcpu_ratio_bp" => Self::Range(1, 10_000_000),
            "pressure_bp" => Self::Range(0, 10_000),
            "memory_mib_total" => Self::Range(1, HOST_MEMORY_MIB_MAX),
            "memory_mib_used" => Self::Range(0, HOST_MEMORY_MIB_MAX),
            "memory_mib_admittable" => Self::Range(-HOST_MEMORY_MIB_MAX, HOST_MEMORY_MIB_MAX),
            "cpu_millis_total" | "cpu_millis_used" => Self::Range(0, HOST_CPU_MILLIS_MAX),
            "starts_limit" => Self::Range(1, STARTS_MAX),
            "starts_in_flight" => Self::Range(0, STARTS_MAX),
            "sequence"
            | "incarnation"
            | "seen_through"
            | "uptime_millis"
            | "cpu_millis_total_used"
            | "egress_bytes_total" => Self::Range(0, COUNT_MAX),
            "attempt" => Self::Range(1, u32::MAX as i128),
            "period_anchor_day" => Self::Range(1, 31),
            "limit" | "burst_limit" => Self::Range(0, COUNT_MAX),
            "preemptions_per_minute_max" => Self::Range(0, 1_000_000),
            "settle_seconds"
            | "preemption_protect_seconds"
            | "preemption_pair_seconds"
            | "inventory_grace_seconds" => Self::Range(0, SETTING_SECONDS_MAX),
            "stale_seconds"
            | "dead_seconds"
            | "decay_seconds"
            | "idle_seconds"
            | "min_run_seconds"
            | "queue_hold_seconds"
            | "hold_ttl_seconds"
            | "resume_lapse_seconds" => Self::Range(1, SETTING_SECONDS_MAX),
            _ => return None,
        };
        Some(bound)
    }

    /// Whether `value` is allowed.
    pub(crate) const fn holds(self, value: i128) -> bool {
        match self {
            Self::Range(least, most) => least <= value && value <= most,
            Self::OffOr(least, most) => value == -1 || (least <= value && value <= most),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(least, most) => write!(f, "an integer from {least} to {most}"),
            Self::OffOr(least, most) => write!(f, "-1 (off) or an integer from {least} to {most}"),
        }
    }
}
