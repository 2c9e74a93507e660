//! What the engine keeps in memory: rows, and what is derived from them for speed.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU128;
use std::sync::Arc;

use foldhash::fast::FixedState;
use plimsoll_policy::aside::Aside;
use plimsoll_policy::charge::Shape;
use plimsoll_policy::fresh::Freshness;
use plimsoll_policy::period::Anchors;
use plimsoll_policy::quota::{Bursts, Usage};
use plimsoll_policy::rate::Buckets;
use plimsoll_types::{
    Counted, DecisionId, DriverSet, HostFilter, HostId, HostReport, Mib, PolicyMode, Regime,
    SandboxId, SandboxStatus, TenantId, Timestamp, Vcpus,
};
use smallvec::SmallVec;

use super::account::Account;
use super::meter::ClaimMeter;
use super::totals::{ReservationShare, SandboxShare, Sums};
use crate::command::{ReserveItem, Token};
use crate::index::PlacementIndex;
use crate::rows::{HostRow, PlanLimits, PoolRow, ReservationRow, SandboxRow, TenantRow};

/// A map that is only looked up in, never walked: its order must not show.
pub(crate) type Map<K, V> = std::collections::HashMap<K, V, FixedState>;

/// Number of a record in its slab.
pub(crate) type Ix = u32;

/// A sandbox or a reservation by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Claim {
    Sandbox(Ix),
    Reservation(Ix),
}

/// What a claim asks of quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) sandboxes: u64,
    pub(crate) vcpus: u64,
    pub(crate) memory: u64,
}

impl Use {
    pub(crate) fn one(memory: Mib, vcpus: Vcpus) -> Self {
        Self { sandboxes: 1, vcpus: vcpus.0, memory: memory.0 }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.sandboxes += other.sandboxes;
        self.vcpus += other.vcpus;
        self.memory += other.memory;
    }

    /// Takes `other` away; a sum that would go below zero is a broken invariant, said by `false`.
    #[must_use]
    pub(crate) fn take(&mut self, other: Self) -> bool {
        let whole = self.sandboxes >= other.sandboxes
            && self.vcpus >= other.vcpus
            && self.memory >= other.memory;
        self.sandboxes = self.sandboxes.saturating_sub(other.sandboxes);
        self.vcpus = self.vcpus.saturating_sub(other.vcpus);
        self.memory = self.memory.saturating_sub(other.memory);
        whole
    }
}

impl From<Use> for Usage {
    fn from(used: Use) -> Self {
        Self { sandboxes: used.sandboxes, vcpus: used.vcpus, memory_mib: used.memory }
    }
}

/// A tenant with what it holds.
///
/// What a decision about it needs lies first and in this order, in two lines of the processor's
/// cache, and two more where it may burst or its forks and resumes have rates: with many tenants
/// they come from memory, and each is waited for. The pairs are those that a processor fetches
/// together. What a slab tells a free place by, a flag, lies in the first. The rest is elsewhere.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Tenant {
    /// The name in its row.
    pub(crate) id: TenantId,
    /// The plan's limits with the tenant's own on top.
    pub(crate) limits: Arc<PlanLimits>,
    pub(crate) used: Use,
    /// Waiting sandboxes and reservations.
    pub(crate) waiting: u32,
    /// Whether its row says that it is suspended.
    pub(crate) suspended: bool,
    /// Whether its limits keep something that moves with decisions.
    pub(crate) moves: bool,
    /// Whether its limits let it burst, so that there is credit to be kept.
    pub(crate) bursting: bool,
    /// Whether its state waits to be written.
    pub(crate) unwritten: bool,
    /// What it has used, and what follows from that.
    pub(crate) account: Option<Box<Account>>,
    /// What is alive of it: all that counts for quota.
    pub(crate) claims: SmallVec<[Claim; 1]>,
    /// Spent rate tokens.
    pub(crate) buckets: Buckets,
    /// Spent burst credit.
    pub(crate) bursts: Bursts,
    /// When its state was last written.
    pub(crate) written_at: Timestamp,
    pub(crate) rest: Box<Rest>,
}

/// What decisions about a tenant do not read.
#[derive(Debug)]
pub(crate) struct Rest {
    /// When its periods begin.
    pub(crate) anchors: Anchors,
    /// Its plan cannot be read: these limits stand in for the plan's.
    pub(crate) lost_plan: Option<Arc<PlanLimits>>,
    row: TenantRow,
}

impl Tenant {
    /// A tenant that has used nothing.
    pub(crate) fn new(
        now: Timestamp,
        row: TenantRow,
        anchors: Anchors,
        limits: Arc<PlanLimits>,
    ) -> Self {
        let mut tenant = Self {
            id: row.id.clone(),
            limits: Arc::clone(&limits),
            used: Use::default(),
            waiting: 0,
            suspended: row.suspended.is_some(),
            moves: false,
            bursting: false,
            unwritten: false,
            account: None,
            claims: SmallVec::new(),
            buckets: Buckets::default(),
            bursts: Bursts::default(),
            written_at: Timestamp(0),
            rest: Box::new(Rest { anchors, lost_plan: None, row }),
        };
        tenant.set_limits(limits);
        tenant.bursts.advance(&tenant.used.into(), &tenant.limits.concurrency, now);
        tenant
    }

    /// What an operator has said of it.
    pub(crate) fn row(&self) -> &TenantRow {
        &self.rest.row
    }

    /// Takes another row under the same name.
    pub(crate) fn set_row(&mut self, mut row: TenantRow) {
        // One copy of a long name for the table of names, the tenant and all its records.
        row.id = self.id.clone();
        self.suspended = row.suspended.is_some();
        self.rest.row = row;
    }

    /// Suspends it, or lets it go on.
    pub(crate) fn suspend(&mut self, why: Option<String>) {
        self.suspended = why.is_some();
        self.rest.row.suspended = why;
    }

    /// Counts something in. Burst credit is settled first, for what was in use until now.
    pub(crate) fn take_on(&mut self, now: Timestamp, more: Use) {
        self.settle_bursts(now);
        self.used.add(more);
    }

    /// Counts something out; `false` when that would go below zero.
    #[must_use]
    pub(crate) fn give_up(&mut self, now: Timestamp, less: Use) -> bool {
        self.settle_bursts(now);
        self.used.take(less)
    }

    /// Counts burst credit up to now, by what is in use.
    pub(crate) fn settle_bursts(&mut self, now: Timestamp) {
        // Without a burst there is no credit that could be spent.
        if self.bursting {
            self.bursts.advance(&self.used.into(), &self.limits.concurrency, now);
        }
    }
}

/// A pool with what it holds.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) row: PoolRow,
    /// Slots held.
    pub(crate) held: u64,
    /// Paused sandboxes that hold none.
    pub(crate) released: u64,
    /// Numbers of its partitions.
    pub(crate) partitions: Vec<Ix>,
    /// Numbers of its hosts.
    pub(crate) hosts: BTreeSet<Ix>,
    /// Who waits, in the order of service.
    pub(crate) queue: BTreeMap<Place, Waiter>,
    /// What is set aside for waiters: what was freed for them, and the need of the one that has
    /// waited longest.
    pub(crate) holds: BTreeMap<Place, Hold>,
    /// Releases in the present and the previous minute, for the estimate of the next.
    pub(crate) releases: Rate,
    /// Preemptions likewise.
    pub(crate) preemptions: Rate,
    /// Expected ends of pauses in progress that free something.
    pub(crate) pausing: BTreeSet<(Timestamp, Ix)>,
    /// How long pauses have taken lately.
    pub(crate) pause_millis: u64,
    /// How long starts and resumes have taken lately.
    pub(crate) start_millis: u64,
    /// The policy snapshot's version and mode; the local one until one is held.
    pub(crate) policy: (u64, PolicyMode),
    /// When victims were last sought.
    pub(crate) preempted_at: Option<Timestamp>,
    /// Pools that may overflow to it: what comes free here, their queues may take.
    pub(crate) overflown_by: Vec<Ix>,
    /// What the provider of an external pool was seen to take. Not kept: a restart learns anew.
    pub(crate) learned: Option<plimsoll_policy::learned::Learned>,
    /// How many hosts have each size: the largest tells what never fits.
    pub(crate) sizes: BTreeMap<Mib, u32>,
}

impl Pool {
    /// The largest memory of any host that has reported.
    pub(crate) fn largest(&self) -> Option<Mib> {
        self.sizes.keys().next_back().copied()
    }
}

/// Events in the present and the previous window of a minute.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    window: i64,
    now: u32,
    before: u32,
}

impl Rate {
    const WINDOW: i64 = 60_000;

    fn turn(&mut self, now: Timestamp) {
        let window = now.0.div_euclid(Self::WINDOW);
        if window != self.window {
            self.before = if window == self.window + 1 { self.now } else { 0 };
            self.now = 0;
            self.window = window;
        }
    }

    pub(crate) fn count(&mut self, now: Timestamp) {
        self.turn(now);
        self.now = self.now.saturating_add(1);
    }

    /// Events of the last minute or so, and over how many milliseconds they were seen.
    pub(crate) fn seen(mut self, now: Timestamp) -> (u32, u64) {
        self.turn(now);
        let into = now.0.rem_euclid(Self::WINDOW).unsigned_abs();
        (self.now.saturating_add(self.before), into + Self::WINDOW.unsigned_abs())
    }

    /// Events of the present minute.
    pub(crate) fn this_minute(mut self, now: Timestamp) -> u32 {
        self.turn(now);
        self.now
    }
}

/// A place in a pool's queue: higher priority first, then age, then arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) priority: std::cmp::Reverse<i32>,
    pub(crate) since: Timestamp,
    pub(crate) arrival: u64,
}

/// Who waits.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A create or a fork.
    Create(Ix),
    /// A paused or stopped sandbox that wants to run again on its own host.
    Resume(Ix),
    /// A reservation whose caller waits.
    Reserve(Box<WaitingReserve>),
}

/// A reservation whose caller waits.
#[derive(Debug)]
pub(crate) struct WaitingReserve {
    pub(crate) token: Token,
    pub(crate) tenant: Ix,
    pub(crate) item: ReserveItem,
    pub(crate) decision: DecisionId,
    pub(crate) deadline: Timestamp,
}

/// What is set aside for one waiter: a slot and a host together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) place: Place,
    pub(crate) host: Option<Ix>,
    pub(crate) slot: bool,
    pub(crate) until: Timestamp,
    /// Set for its age, not for what a victim freed.
    pub(crate) aged: bool,
}

/// Hosts that an index can serve alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PartitionKey {
    pub(crate) pool: Ix,
    pub(crate) regime: Regime,
    pub(crate) drivers: DriverSet,
    /// Of the labels that some template asks for.
    pub(crate) labels: Arc<BTreeMap<String, String>>,
}

/// The hosts of one key: those that take something in an index, the others counted by why not.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) key: PartitionKey,
    pub(crate) ready: PlacementIndex,
    /// Those that would take something but for their bound of starts.
    pub(crate) saturated: PlacementIndex,
    pub(crate) out: BTreeMap<HostFilter, u32>,
}

/// A host with its last report.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) row: HostRow,
    pub(crate) pool: Ix,
    pub(crate) ring: u64,
    pub(crate) report: Option<Seen>,
    pub(crate) aside: Aside,
    /// The last standing that was put into its partition.
    pub(crate) listed: Option<Listed>,
    /// Live claims on it.
    pub(crate) claims: Vec<Claim>,
    /// What they add up to.
    pub(crate) sums: Sums,
    /// Charges that the last report does not hold.
    pub(crate) pending: u64,
    pub(crate) pending_vcpus: u64,
    /// Starts and resumes sent, whose outcome or report has not come.
    pub(crate) pending_starts: u32,
    pub(crate) pending_counted: Counted,
    /// What its report shows as free of counted resources less what is pending, where anything
    /// is; else the report itself says it.
    pub(crate) counted_left: Option<Counted>,
    /// Stateful memory on it, in full.
    pub(crate) stateful: u64,
    /// vCPUs promised on it.
    pub(crate) vcpus: u64,
    /// Waiters that it is held for.
    pub(crate) holds: u32,
    pub(crate) dead: bool,
    pub(crate) stale_said: bool,
    pub(crate) pressure_said: bool,
    /// When it was last asked afresh, and whether the answer is out.
    pub(crate) asked_at: Option<Timestamp>,
    pub(crate) asking: bool,
    pub(crate) next_number: u64,
    pub(crate) unexpected: Vec<String>,
    /// How old its report was when the clock was last looked at; `None` has none.
    pub(crate) fresh: Option<Freshness>,
    pub(crate) checked_at: Timestamp,
    /// When this engine first knew of it.
    pub(crate) since: Timestamp,
    /// The pool in which its size is counted, and the size.
    pub(crate) sized: Option<(Ix, Mib)>,
    /// Counts its reports: what a report lists carries its stamp.
    pub(crate) stamp: u64,
}

/// Earlier boots that are remembered, so that what comes late of one is dropped.
const OLD_BOOTS: usize = 8;

impl Host {
    /// Takes note of the boot that speaks for the host now. `true` when it is another one.
    pub(crate) fn replace_boot(&mut self, boot_id: &str) -> bool {
        if self.row.boot_id.as_deref() == Some(boot_id) {
            return false;
        }
        if let Some(old) = self.row.boot_id.replace(boot_id.to_owned()) {
            let boots = &mut self.row.old_boots;
            boots.push(old);
            if boots.len() > OLD_BOOTS {
                boots.remove(0);
            }
        }
        true
    }
}

/// A report as it was received.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) at: Timestamp,
    pub(crate) report: HostReport,
}

/// Where a host stands in its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) partition: Ix,
    pub(crate) standing: Option<HostFilter>,
}

/// A sandbox with what is derived.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) row: SandboxRow,
    pub(crate) tenant: Ix,
    pub(crate) pool: Option<Ix>,
    pub(crate) host: Option<Ix>,
    /// Its place among its host's claims, while it has one there.
    pub(crate) on_host: Option<u32>,
    /// What it was charged when its host was last told to run it, while no report holds that.
    pub(crate) pending: Option<Pending>,
    /// The same as it was first (charge, starting, thaws), for a command that has to be sent again
    /// after a report has accounted for the first.
    pub(crate) asked: Option<(u64, bool, bool)>,
    /// See [`Sandbox::rare`] and [`Sandbox::edit_rare`].
    pub(crate) rare: Option<Box<Rare>>,
    /// Its caller has its answer: a refusal by the hosts queues it.
    pub(crate) answered: bool,
    /// A start of unknown outcome is being undone before another is tried.
    pub(crate) undoing: bool,
    /// The host and the stamp of the last report that listed it.
    pub(crate) seen: (Ix, u64),
    /// Fingerprint of its key.
    pub(crate) key: Option<NonZeroU128>,
    pub(crate) timer: Option<Timestamp>,
    pub(crate) measured_written_at: Timestamp,
    /// The pool that it asks first.
    pub(crate) home: Option<Ix>,
    /// Its start was under way when this engine took over: nobody here knows what came of it.
    pub(crate) taken_over: bool,
    /// It is stopped, and its host has not said yet that its process is gone.
    pub(crate) stopping: bool,
    /// Its host woke it by itself, beyond the pool's limit.
    pub(crate) woken: bool,
    /// Its place among its tenant's claims, while it counts for quota.
    pub(crate) on_tenant: u32,
    /// How it is metered, once it has used anything.
    pub(crate) meter: Option<Box<ClaimMeter>>,
    /// What it was counted with among its host's.
    pub(crate) counted: Option<SandboxShare>,
}

impl Sandbox {
    /// A record that holds nothing yet.
    pub(crate) fn new(row: SandboxRow) -> Self {
        Self {
            // After a restart its host's next report tells.
            stopping: row.status == SandboxStatus::Stopped,
            row,
            tenant: 0,
            pool: None,
            host: None,
            on_host: None,
            pending: None,
            asked: None,
            rare: None,
            answered: false,
            undoing: false,
            seen: (0, 0),
            key: None,
            timer: None,
            measured_written_at: Timestamp(0),
            home: None,
            taken_over: false,
            woken: false,
            on_tenant: 0,
            meter: None,
            counted: None,
        }
    }

    /// What few sandboxes have.
    pub(crate) fn rare(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&NO_RARE)
    }

    /// Changes what few sandboxes have; it takes memory only while there is something.
    pub(crate) fn edit_rare(&mut self, edit: impl FnOnce(&mut Rare)) {
        edit_rare(&mut self.rare, edit);
    }
}

fn edit_rare(held: &mut Option<Box<Rare>>, edit: impl FnOnce(&mut Rare)) {
    if let Some(rare) = held {
        edit(rare);
        if **rare == NO_RARE {
            *held = None;
        }
    } else {
        let mut rare = Rare::NONE;
        edit(&mut rare);
        if rare != NO_RARE {
            *held = Some(Box::new(rare));
        }
    }
}

/// What few sandboxes have at a time. Kept apart, so that the record of one that simply runs is
/// small.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rare {
    /// Its place in the queue of a pool.
    pub(crate) place: Option<(Ix, Place)>,
    /// Hosts that refused or failed this attempt of a start. One that refused may be asked again
    /// once it has reported anew, so its stamp stands beside it; one that failed may not.
    pub(crate) tried: Vec<(Ix, Option<u64>)>,
    pub(crate) pause_failed_at: Option<Timestamp>,
    /// When its pause is expected to end, while it is under way and will free something.
    pub(crate) pause_expected: Option<Timestamp>,
    /// The victims that were paused for it.
    pub(crate) displaced: Vec<SandboxId>,
    /// Starts that have failed.
    pub(crate) failures: u32,
    /// Repeats of the command under way, each later than the one before.
    pub(crate) repeats: u32,
    /// The attempt that was last ended as a stray.
    pub(crate) stray_said: u32,
    /// Since when complete lists miss it.
    pub(crate) missing_since: Option<Timestamp>,
}

impl Rare {
    const NONE: Self = Self {
        place: None,
        tried: Vec::new(),
        pause_failed_at: None,
        pause_expected: None,
        displaced: Vec::new(),
        failures: 0,
        repeats: 0,
        stray_said: 0,
        missing_since: None,
    };

    /// Takes note of a host that refused or failed, in place of what was noted of it before.
    pub(crate) fn try_host(&mut self, tried: (Ix, Option<u64>)) {
        self.tried.retain(|(host, _)| *host != tried.0);
        self.tried.push(tried);
    }
}

static NO_RARE: Rare = Rare::NONE;

/// A charge that no report holds yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) charge: u64,
    /// The command that a report must have seen; `None` where only a listing tells.
    pub(crate) number: Option<u64>,
    /// Whether the start itself is still under way.
    pub(crate) starting: bool,
    /// Memory alone, for a frozen guest that runs again: it holds its vCPUs and resources already,
    /// and of its memory what the host's last report charges for it. The rest is here.
    pub(crate) thaws: bool,
}

/// A reservation with what is derived.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) row: Arc<ReservationRow>,
    pub(crate) tenant: Ix,
    pub(crate) pool: Ix,
    pub(crate) host: Ix,
    pub(crate) on_host: u32,
    /// Whether the host's last report holds its charge.
    pub(crate) netted: bool,
    /// The stamp of the last report of its host that listed it.
    pub(crate) seen: u64,
    /// Its place in the bucket of its expiry.
    pub(crate) wheel: Option<(i64, u32)>,
    pub(crate) missing_since: Option<Timestamp>,
    /// Its place among its tenant's claims, while it holds.
    pub(crate) on_tenant: u32,
    /// How it is metered, once a host has said more of it than its row does.
    pub(crate) meter: Option<Box<ClaimMeter>>,
    pub(crate) key: u128,
    pub(crate) ttl_seconds: u64,
    /// What it was counted with among its host's.
    pub(crate) counted: Option<ReservationShare>,
}

/// A request that waits for hosts to answer before it is refused. It holds nothing.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) token: Token,
    pub(crate) call: ParkedCall,
    /// Hosts whose answers it waits for.
    pub(crate) waits_for: BTreeSet<Ix>,
    pub(crate) deadline: Timestamp,
}

/// What a parked request was.
#[derive(Debug)]
pub(crate) enum ParkedCall {
    Command(crate::command::Caller, crate::command::Command),
}

/// What a key remembers of a refused request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) first_refused: Timestamp,
    pub(crate) said: Option<Timestamp>,
    pub(crate) touched: Timestamp,
}

/// What a placement asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) shape: Shape,
    pub(crate) drivers: DriverSet,
    pub(crate) labels: &'a BTreeMap<String, String>,
    pub(crate) counted: &'a Counted,
    pub(crate) ring: u64,
    pub(crate) tried: SmallVec<[Ix; 4]>,
    /// The waiter for which a hold may be used.
    pub(crate) place: Option<Place>,
}

/// A host that takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) pool: Ix,
    pub(crate) host: Ix,
    pub(crate) charge: Mib,
}

/// Timers that need their exact time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A host's freshness, trust or hold may change.
    Host(Ix),
    /// A sandbox's lifecycle limit, or the end of its terminating.
    Sandbox(Ix, SandboxId),
    /// A pool's queue: holds, aged heads, waits that end.
    Queue(Ix),
    /// Parked requests.
    Parked,
    /// A tenant's next step on the ladder.
    Tenant(Ix),
    /// States of tenants that wait to be written.
    States,
}

/// Names that a host may have been known by.
pub(crate) type HostNames = Map<HostId, Ix>;

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the 1 KiB of a live sandbox's record. Its meter, its key and labels, its places in the
    /// maps and lists, and the allocator have the rest.
    #[test]
    fn a_sandbox_that_runs_is_small() {
        assert!(size_of::<Sandbox>() <= 672, "{}", size_of::<Sandbox>());
    }

    #[test]
    fn what_is_rare_takes_memory_only_while_it_is_there() {
        let mut rare = None;
        edit_rare(&mut rare, |rare| rare.tried.clear());
        assert!(rare.is_none());
        edit_rare(&mut rare, |rare| rare.try_host((1, None)));
        edit_rare(&mut rare, |rare| rare.try_host((1, Some(7))));
        assert_eq!(rare.as_ref().map(|rare| rare.tried.clone()), Some(vec![(1, Some(7))]));
        edit_rare(&mut rare, |rare| rare.tried.clear());
        assert!(rare.is_none());
    }
}
