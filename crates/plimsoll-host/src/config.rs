use std::collections::BTreeMap;

use plimsoll_policy::pressure::PressureRule;
use plimsoll_types::{Counted, DriverSet, HostId, Mib, Millis, PoolName, Regime};

/// Settings of one host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Its name.
    pub host: HostId,
    /// New at each start of the agent.
    pub boot_id: String,
    /// The machine's own boot. Start times in the journal are uptimes of one boot; after another
    /// they mean nothing.
    pub machine_boot: String,
    /// Its pool.
    pub pool: PoolName,
    /// Where it stands, for people.
    pub region: String,
    /// Where its agent listens.
    pub address: Option<String>,
    /// Labels that templates may ask for.
    pub labels: BTreeMap<String, String>,
    /// What it can run guests with.
    pub drivers: DriverSet,
    /// Counted resources that it owns (GPUs, network slots), all of them. Measured ones come with
    /// each sample.
    pub counted: Counted,
    /// Whether guests boot without pulling their whole memory first.
    pub stream_restore: bool,
    /// Memory offered to guests and system; `None` offers the whole machine.
    pub memory_offered: Option<Mib>,
    /// The headroom band; `None` takes the default of
    /// [`plimsoll_policy::host::default_headroom`].
    pub headroom: Option<Mib>,
    /// The owner's own choice of arithmetic; `None` takes the pool's.
    pub regime: Option<Regime>,
    /// Most starts at once; `None` is unbounded. 8 unless set: a start is bound by CPU and disk,
    /// and hundreds at once have been seen to take machines down.
    pub starts_limit: Option<u32>,
    /// Most guests, those at rest included: what one heartbeat may list, with room to spare.
    pub guests_max: usize,
    /// Most ended guests that are remembered: an hour of churn at one end a second, with room.
    pub tombstones_max: usize,
    /// How often the cell hears of the host at least. A third of the age at which it would stop
    /// placing guests here.
    pub heartbeat: Millis,
    /// Shortest time between two heartbeats, however much changes.
    pub heartbeat_gap: Millis,
    /// A sample older than this is no knowledge any more.
    pub sample_age_max: Millis,
    /// When the gate shuts and when the host acts on its guests; `None` takes
    /// [`PressureRule::for_headroom`] of the headroom band.
    pub pressure: Option<PressureRule>,
    /// A guest without activity for this long gives way first under pressure.
    pub idle: Millis,
}

impl HostConfig {
    /// The defaults for a host of this name, pool and pair of boots.
    #[must_use]
    pub fn new(host: HostId, pool: PoolName, boot_id: String, machine_boot: String) -> Self {
        Self {
            host,
            boot_id,
            machine_boot,
            pool,
            region: String::new(),
            address: None,
            labels: BTreeMap::new(),
            drivers: DriverSet::EMPTY,
            counted: Counted::new(),
            stream_restore: false,
            memory_offered: None,
            headroom: None,
            regime: None,
            starts_limit: Some(8),
            guests_max: 10_000,
            tombstones_max: 10_000,
            heartbeat: Millis::from_seconds(10),
            heartbeat_gap: Millis::from_seconds(1),
            sample_age_max: Millis::from_seconds(30),
            pressure: None,
            idle: Millis::from_seconds(60),
        }
    }
}
