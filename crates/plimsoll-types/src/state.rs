//! States and modes.

use alloc::string::{String, ToString};
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::time::Millis;
use crate::units::{BasisPoints, Mib};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The word used at every edge.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl core::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(alloc::format!(
                        "{text:?} is none of {}",
                        [$($text),*].join(", ")
                    )),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <alloc::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(|error: String| de::Error::custom(error.to_string()))
            }
        }
    };
}

words!(
    /// Where a sandbox stands (DESIGN: `queued -> provisioning -> running <-> (pausing -> paused ->
    /// resuming)`, `stopped`, `terminating -> terminated`, `failed`).
    SandboxStatus {
        /// Waits for capacity; holds nothing.
        Queued = "queued",
        /// Admitted; its start is under way.
        Provisioning = "provisioning",
        /// Runs on its host.
        Running = "running",
        /// Its pause was sent and is not finished.
        Pausing = "pausing",
        /// Paused.
        Paused = "paused",
        /// Its resume was admitted and is under way.
        Resuming = "resuming",
        /// Its process has ended by request; the record and the slot stay.
        Stopped = "stopped",
        /// Its end was sent and is not confirmed.
        Terminating = "terminating",
        /// Gone.
        Terminated = "terminated",
        /// Gone by a fault that is no capacity refusal.
        Failed = "failed",
    }
);

impl SandboxStatus {
    /// Whether the record counts against its tenant's concurrency: every state but queued,
    /// terminated and failed, paused ones too.
    #[must_use]
    pub const fn counts_for_quota(self) -> bool {
        !matches!(self, Self::Queued | Self::Terminated | Self::Failed)
    }

    /// Whether the record has come to its end.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Terminated | Self::Failed)
    }
}

words!(
    /// What a host says about one guest of its own.
    GuestStatus {
        /// Being started.
        Starting = "starting",
        /// Running.
        Running = "running",
        /// Its pause is not finished.
        Pausing = "pausing",
        /// Frozen or checkpointed.
        Paused = "paused",
        /// Being resumed or restored.
        Resuming = "resuming",
        /// Its process has ended by itself or by request.
        Exited = "exited",
        /// Being ended.
        Ending = "ending",
    }
);

words!(
    /// How much a request matters when the fleet must shed.
    Criticality {
        /// Refused last.
        Critical = "critical",
        /// The usual.
        Standard = "standard",
        /// Refused first when the policy has gone static.
        Sheddable = "sheddable",
    }
);

words!(
    /// What to do with a create that finds no room.
    OnFull {
        /// Answer no.
        Reject = "reject",
        /// Keep it as `queued` and start it later.
        Queue = "queue",
    }
);

words!(
    /// Which arithmetic admits on a host or in a pool.
    Regime {
        /// Anything that the pool's slots allow; stateful guests are still fitted in full.
        None = "none",
        /// Sum of configured memory.
        Committed = "committed",
        /// Measured resident memory, with a reserve for what is not measured yet.
        WorkingSet = "working-set",
    }
);

words!(
    /// What a pause does in a pool.
    PauseKind {
        /// What the guest's own driver does.
        Driver = "driver",
        /// The guest is frozen and stays on its host with its memory and slot.
        Keep = "keep",
        /// Memory and disk are written out and the guest leaves its host.
        Checkpoint = "checkpoint",
    }
);

words!(
    /// Which host is preferred.
    Placement {
        /// The emptiest.
        Spread = "spread",
        /// The fullest that still fits.
        Pack = "pack",
    }
);

words!(
    /// Whom a pool may pause to make room.
    PreemptionMode {
        /// Nobody.
        Off = "off",
        /// Guests without a call for a while.
        Idle = "idle",
        /// Guests that ran for a while, busy or not.
        Lru = "lru",
    }
);

words!(
    /// How permissive the held policy snapshot is by its age.
    PolicyMode {
        /// Fresh, or local without a planner.
        Normal = "normal",
        /// Older than its soft bound.
        Conservative = "conservative",
        /// Older than its hard bound: no overcommit.
        Static = "static",
    }
);

words!(
    /// What runs a guest.
    Driver {
        /// Child processes. No security boundary.
        Process = "process",
        /// gVisor's `runsc`.
        Gvisor = "gvisor",
        /// Guests that exist only as numbers with a memory curve.
        Simulated = "simulated",
        /// A provider outside, reached over HTTP.
        External = "external",
    }
);

impl Driver {
    /// What this driver's own pause does (a pool's `pause: "driver"`).
    #[must_use]
    pub const fn pause(self) -> PauseKind {
        match self {
            Self::Process | Self::External => PauseKind::Keep,
            Self::Gvisor | Self::Simulated => PauseKind::Checkpoint,
        }
    }

    /// Whether its guests can be written out, so that another can be started from one's memory.
    #[must_use]
    pub const fn checkpoints(self) -> bool {
        matches!(self.pause(), PauseKind::Checkpoint)
    }

    const fn bit(self) -> u8 {
        match self {
            Self::Process => 1,
            Self::Gvisor => 2,
            Self::Simulated => 4,
            Self::External => 8,
        }
    }
}

/// The drivers that a host offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverSet(u8);

impl DriverSet {
    /// No driver.
    pub const EMPTY: Self = Self(0);
    /// Any driver: a host without our agent does not say, and starts guests by means of its own.
    pub const ALL: Self = Self(15);

    /// This set and one more driver.
    #[must_use]
    pub const fn with(self, driver: Driver) -> Self {
        Self(self.0 | driver.bit())
    }

    /// Whether the driver is in the set.
    #[must_use]
    pub const fn has(self, driver: Driver) -> bool {
        self.0 & driver.bit() != 0
    }

    /// The set as bits, for keys and rows.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set from bits, unknown ones dropped.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 15)
    }
}

impl FromIterator<Driver> for DriverSet {
    fn from_iter<I: IntoIterator<Item = Driver>>(drivers: I) -> Self {
        drivers.into_iter().fold(Self::EMPTY, Self::with)
    }
}

/// How much of a guest's configured memory is charged before it is measured.
///
/// Source: DESIGN 4.1; the first seed's quarter with a floor of 512 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReserveRule {
    /// Never less than this, except that no guest is charged above its configured memory.
    pub floor_mib: Mib,
    /// Share of the configured memory, rounded up.
    pub fraction_bp: BasisPoints,
    /// How long an admission holds before its guest must exist, in seconds.
    pub ttl_seconds: u64,
}

impl Default for ReserveRule {
    fn default() -> Self {
        Self { floor_mib: Mib(512), fraction_bp: BasisPoints(2500), ttl_seconds: 60 }
    }
}

impl ReserveRule {
    /// The time to live as a length.
    #[must_use]
    pub const fn ttl(&self) -> Millis {
        Millis::from_seconds(self.ttl_seconds)
    }
}

/// Whom a pool may pause for a waiter, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Preemption {
    /// The mode; `off` unless an operator sets it.
    pub mode: PreemptionMode,
    /// Mode idle: no exec, keepalive or other activity for this long, in seconds.
    pub idle_seconds: u64,
    /// Mode lru: never a guest that ran less than this, in seconds.
    pub min_run_seconds: u64,
}

impl Default for Preemption {
    fn default() -> Self {
        Self { mode: PreemptionMode::Off, idle_seconds: 60, min_run_seconds: 600 }
    }
}

/// Lifecycle limits of a sandbox in seconds: `None` takes the operator's default, -1 is off, else
/// at least 60.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lifecycle {
    /// Pause after this long without activity.
    pub idle_timeout_seconds: Option<i64>,
    /// Pause after running this long without a break, busy or not.
    pub max_run_seconds: Option<i64>,
    /// Delete after staying paused or stopped this long.
    pub max_paused_seconds: Option<i64>,
    /// Delete after this long, whatever the state.
    pub ttl_seconds: Option<i64>,
}
