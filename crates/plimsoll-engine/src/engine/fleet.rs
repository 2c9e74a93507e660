//! Hosts: who they are, whether something may be placed on them, and the commands they are sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_policy::charge::{Shape, need};
use plimsoll_policy::fit::{HostFacts, standing};
use plimsoll_policy::fresh::{Freshness, freshness};
use plimsoll_policy::score::{preference, ring};
use plimsoll_types::{
    Counted, Fence, HostCommand, HostFilter, HostId, HostOp, Millis, PoolName, RefusalCode, Regime,
    Timestamp,
};
use serde_json::json;

use super::Engine;
use super::state::{Host, Ix, Listed, Partition, PartitionKey, Timer};
use super::totals::Sums;
use crate::command::Token;
use crate::index::{PlacementIndex, Slot};
use crate::output::{Effect, Output, Refusal, Reply};
use crate::rows::{Change, HostRow};

/// Command numbers are set aside in blocks, so that a restart goes on above every number that may
/// have been sent without a write for each.
const NUMBER_BLOCK: u64 = 10_000;

/// What an agent's gate says when pressure has shut it.
pub(super) const PRESSURE: &str = "pressure";

impl Engine {
    /// A host by name, if it is known.
    pub(super) fn host_by_name(&self, name: &HostId) -> Option<Ix> {
        self.host_ix.get(name).copied()
    }

    /// Takes a new host in.
    pub(super) fn enrol(&mut self, now: Timestamp, row: HostRow, pool: Ix, out: &mut Output) -> Ix {
        out.changes.push(Change::Host(row.clone()));
        let ix = self.insert_host(now, row, pool);
        self.event(now, "host.enrolled", None, json!({ "host": self.hosts[ix].row.id }), out);
        ix
    }

    pub(super) fn insert_host(&mut self, now: Timestamp, row: HostRow, pool: Ix) -> Ix {
        let name = row.id.clone();
        let host = Host {
            pool,
            ring: ring(name.as_str()),
            next_number: row.command_numbers_through,
            row,
            report: None,
            aside: plimsoll_policy::aside::Aside::default(),
            listed: None,
            claims: Vec::new(),
            sums: Sums::default(),
            pending: 0,
            pending_vcpus: 0,
            pending_starts: 0,
            pending_counted: Counted::new(),
            counted_left: None,
            stateful: 0,
            vcpus: 0,
            holds: 0,
            dead: false,
            stale_said: false,
            pressure_said: false,
            asked_at: None,
            asking: false,
            unexpected: Vec::new(),
            fresh: None,
            checked_at: now,
            since: now,
            sized: None,
            stamp: 0,
        };
        let ix = self.hosts.insert(host);
        self.host_ix.insert(name, ix);
        self.pools[pool].hosts.insert(ix);
        self.relist(ix);
        self.timers.insert((now, Timer::Host(ix)));
        ix
    }

    /// An agent has started: it gets an incarnation above every one before.
    #[expect(clippy::too_many_arguments, reason = "the fields of one input, taken apart once")]
    pub(super) fn register(
        &mut self,
        now: Timestamp,
        token: Token,
        name: &HostId,
        pool: &PoolName,
        (address, secret): (Option<String>, Option<String>),
        boot_id: &str,
        out: &mut Output,
    ) {
        let Some(pool_ix) = self.pool_ix.get(pool).copied() else {
            Self::refuse(token, self.unknown_pool(pool), out);
            return;
        };
        let ix = match self.host_by_name(name) {
            Some(ix) => ix,
            None => {
                let row = new_host_row(name.clone(), pool.clone(), now);
                self.enrol(now, row, pool_ix, out)
            }
        };
        if self.hosts[ix].row.old_boots.iter().any(|old| old == boot_id) {
            let detail = format!("{boot_id} is an earlier start of the agent of {name}");
            return Self::refuse(token, Refusal::new(RefusalCode::Conflict, detail), out);
        }
        self.move_host(ix, pool_ix);
        let host = &mut self.hosts[ix];
        // The same start that asks once more, or whose first question came late, has its place.
        if host.row.boot_id.as_deref() != Some(boot_id) || host.row.incarnation == 0 {
            host.row.incarnation += 1;
            host.replace_boot(boot_id);
        }
        host.row.address = address.or(host.row.address.take());
        host.row.secret = secret.or(host.row.secret.take());
        let incarnation = host.row.incarnation;
        out.changes.push(Change::Host(host.row.clone()));
        out.replies.push((token, Reply::Registered { incarnation, epoch: self.epoch }));
    }

    pub(super) fn move_host(&mut self, ix: Ix, pool: Ix) {
        let old = self.hosts[ix].pool;
        if old == pool {
            return;
        }
        self.pools[old].hosts.remove(&ix);
        self.pools[pool].hosts.insert(ix);
        self.hosts[ix].pool = pool;
        self.hosts[ix].row.pool = self.pools[pool].row.name.clone();
        self.relist(ix);
    }

    /// The regime that this host's gate enforces.
    pub(super) fn regime(&self, ix: Ix) -> Regime {
        let host = &self.hosts[ix];
        host.report
            .as_ref()
            .and_then(|seen| seen.report.memory_admission)
            .unwrap_or(self.pools[host.pool].row.settings.regime)
    }

    /// What the host still admits once everything its report cannot know of is taken off.
    pub(super) fn effective(&self, ix: Ix) -> Option<i64> {
        let host = &self.hosts[ix];
        let admittable = host.report.as_ref()?.report.memory_mib_admittable?;
        Some(admittable.saturating_sub(signed(host.pending)))
    }

    /// What is free of counted resources once everything its report cannot know of is taken off.
    pub(super) fn counted_free(&self, ix: Ix) -> Option<&Counted> {
        let host = &self.hosts[ix];
        let reported = host.report.as_ref().map(|seen| &seen.report.counted);
        host.counted_left.as_ref().or(reported)
    }

    /// Works that out anew, after the report or what is pending has moved.
    pub(super) fn recount_resources(&mut self, ix: Ix) {
        let host = &mut self.hosts[ix];
        host.counted_left = host.report.as_ref().and_then(|seen| {
            if host.pending_counted.is_empty() {
                return None;
            }
            let mut left = seen.report.counted.clone();
            for (name, amount) in &host.pending_counted {
                if let Some(free) = left.get_mut(name) {
                    *free = free.saturating_sub(*amount);
                }
            }
            Some(left)
        });
    }

    /// Everything that a request is held against. `tried` and `held` are the request's own to say.
    pub(super) fn facts(&self, ix: Ix) -> HostFacts<'_> {
        static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();
        static NO_COUNTED: Counted = Counted::new();
        let host = &self.hosts[ix];
        let settings = &self.pools[host.pool].row.settings;
        let report = host.report.as_ref().map(|seen| &seen.report);
        let shut = report.and_then(|report| report.not_admitting.as_deref());
        HostFacts {
            freshness: if host.dead { Some(Freshness::Dead) } else { host.fresh },
            drivers: report.map_or_else(Default::default, |report| report.drivers),
            labels: report.map_or(&NO_LABELS, |report| &report.labels),
            draining: host.row.draining,
            pressure: shut == Some(PRESSURE),
            set_aside: host.aside.is_set_aside(host.checked_at),
            tried: false,
            held: host.holds > 0,
            starts: report
                .map_or(0, |report| report.starts_in_flight)
                .saturating_add(host.pending_starts),
            starts_limit: report.and_then(|report| report.starts_limit),
            regime: self.regime(ix),
            admittable: self.effective(ix),
            stateful: plimsoll_types::Mib(host.stateful),
            stateful_bound: report.map_or(0, |report| report.memory_mib_total.signed()),
            cpu_total: report.map_or_else(Default::default, |report| report.cpu_millis_total),
            vcpus_promised: plimsoll_types::Vcpus(host.vcpus),
            max_vcpu_ratio_bp: settings.max_vcpu_ratio_bp,
            counted_free: self.counted_free(ix).unwrap_or(&NO_COUNTED),
        }
    }

    /// Why nothing new is placed on this host, whatever is asked.
    pub(super) fn standing(&self, ix: Ix) -> Option<HostFilter> {
        let facts = self.facts(ix);
        standing(&facts).or(if facts.held { Some(HostFilter::Held) } else { None })
    }

    /// Where the host stands among those that an index serves alike. A placement asks for the
    /// highest score of those that fit.
    pub(super) fn slot(&self, ix: Ix) -> Slot {
        let host = &self.hosts[ix];
        let placement = self.pools[host.pool].row.settings.placement;
        let (cpu, memory, stream) = match &host.report {
            Some(seen) => {
                let report = &seen.report;
                let cpu = report.cpu_millis_total.signed()
                    - report.cpu_millis_used.signed()
                    - signed(host.pending_vcpus.saturating_mul(1000));
                let memory = report.memory_mib_total.signed()
                    - report.memory_mib_used.signed()
                    - signed(host.pending);
                (cpu, memory, report.stream_restore)
            }
            None => (0, 0, false),
        };
        Slot {
            host: ix,
            admittable: self.effective(ix).unwrap_or(i64::MIN),
            score: preference(placement, cpu, memory, stream),
            ring: host.ring,
        }
    }

    /// Puts a host where it belongs now: among those that take something, among those that are
    /// only at their bound of starts, or among the others, counted by why.
    pub(super) fn relist(&mut self, ix: Ix) {
        let standing = self.standing(ix);
        let partition = self.partition_of(ix);
        let slot = self.slot(ix);
        let now = Listed { partition, standing };
        let before = self.hosts[ix].listed.replace(now);
        if let Some(before) = before
            && before != now
        {
            let old = &mut self.partitions[before.partition];
            match before.standing {
                None => drop(old.ready.remove(ix)),
                Some(filter) => {
                    if filter == HostFilter::StartsSaturated {
                        old.saturated.remove(ix);
                    }
                    if let Some(count) = old.out.get_mut(&filter) {
                        *count = count.saturating_sub(1);
                    }
                }
            }
        }
        let entry = &mut self.partitions[partition];
        match standing {
            None => entry.ready.upsert(slot),
            Some(filter) => {
                if filter == HostFilter::StartsSaturated {
                    entry.saturated.upsert(slot);
                }
                if before != Some(now) {
                    *entry.out.entry(filter).or_default() += 1;
                }
            }
        }
    }

    /// Puts a host's new figures where it stands, when nothing but its pending charges has moved:
    /// the path of every reservation.
    pub(super) fn requote(&mut self, ix: Ix) {
        match self.hosts[ix].listed {
            Some(Listed { partition, standing: None }) => {
                let slot = self.slot(ix);
                self.partitions[partition].ready.upsert(slot);
            }
            _ => self.relist(ix),
        }
    }

    /// Takes a host out of every list.
    pub(super) fn unlist(&mut self, ix: Ix) {
        let Some(listed) = self.hosts[ix].listed.take() else { return };
        let partition = &mut self.partitions[listed.partition];
        partition.ready.remove(ix);
        partition.saturated.remove(ix);
        if let Some(filter) = listed.standing
            && let Some(count) = partition.out.get_mut(&filter)
        {
            *count = count.saturating_sub(1);
        }
    }

    fn partition_of(&mut self, ix: Ix) -> Ix {
        if let Some(listed) = self.hosts[ix].listed
            && self.fits_partition(ix, listed.partition)
        {
            return listed.partition;
        }
        let host = &self.hosts[ix];
        let report = host.report.as_ref().map(|seen| &seen.report);
        let labels: BTreeMap<String, String> = report
            .map(|report| {
                let asked = |(key, _): &(&String, &String)| self.label_keys.contains(*key);
                report.labels.iter().filter(asked).map(|(k, v)| (k.clone(), v.clone())).collect()
            })
            .unwrap_or_default();
        let key = PartitionKey {
            pool: host.pool,
            regime: self.regime(ix),
            drivers: report.map_or_else(Default::default, |report| report.drivers),
            labels: Arc::new(labels),
        };
        if let Some(partition) = self.partition_ix.get(&key) {
            return *partition;
        }
        let pool = key.pool;
        let partition = self.partitions.insert(Partition {
            key: key.clone(),
            ready: PlacementIndex::new(),
            saturated: PlacementIndex::new(),
            out: BTreeMap::new(),
        });
        self.partition_ix.insert(key, partition);
        self.pools[pool].partitions.push(partition);
        partition
    }

    /// Whether the host's last listing still holds, without building a key anew: the usual case.
    fn fits_partition(&self, ix: Ix, partition: Ix) -> bool {
        let host = &self.hosts[ix];
        let key = &self.partitions[partition].key;
        let report = host.report.as_ref().map(|seen| &seen.report);
        let drivers = report.map_or_else(Default::default, |report| report.drivers);
        if key.pool != host.pool || key.drivers != drivers || key.regime != self.regime(ix) {
            return false;
        }
        if self.label_keys.is_empty() {
            return key.labels.is_empty();
        }
        let of_host = |label: &String| report.and_then(|report| report.labels.get(label));
        self.label_keys.iter().all(|label| of_host(label) == key.labels.get(label))
    }

    /// The set of labels that tell hosts apart has changed.
    pub(super) fn relabel(&mut self) {
        self.label_keys =
            self.templates.values().flat_map(|t| t.host_labels.keys().cloned()).collect();
        for sandbox in self.sandboxes.iter().map(|(_, sandbox)| sandbox) {
            if !sandbox.row.status.is_terminal() {
                self.label_keys.extend(sandbox.row.spec.host_labels.keys().cloned());
            }
        }
        for ix in self.hosts.numbers() {
            self.relist(ix);
        }
    }

    /// Looks at a host's clock-driven facts: freshness, trust, and what follows from silence.
    pub(super) fn check_host(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let (stale, dead) = {
            let settings = &self.pools[self.hosts[ix].pool].row.settings;
            (
                Millis::from_seconds(settings.stale_seconds),
                Millis::from_seconds(settings.dead_seconds),
            )
        };
        let host = &mut self.hosts[ix];
        host.checked_at = now;
        let heard = host.report.as_ref().map(|seen| seen.at);
        let class = heard.map(|at| freshness(now.since(at), stale, dead));
        host.fresh = class;
        let (name, was_dead) = (host.row.id.clone(), host.dead);
        // A host that has never reported since the start of the cell is as silent as one that
        // stopped then.
        let silent_since = heard.unwrap_or(host.since);
        let gone = freshness(now.since(silent_since), stale, dead) == Freshness::Dead;
        if class == Some(Freshness::Stale) && !host.stale_said {
            host.stale_said = true;
            self.event(now, "host.stale", None, json!({ "host": name }), out);
        }
        if gone && !was_dead {
            self.declare_dead(now, ix, out);
        }
        self.relist(ix);
        self.arm_host(now, ix, silent_since, stale, dead);
        self.poll(now, ix, out);
    }

    fn arm_host(&mut self, now: Timestamp, ix: Ix, heard: Timestamp, stale: Millis, dead: Millis) {
        let host = &self.hosts[ix];
        let mut next: Option<Timestamp> = host.aside.until(now);
        // A bound is passed when the age is above it, one millisecond later.
        for at in [heard + stale + Millis(1), heard + dead + Millis(1)] {
            if at > now {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        if let Some(at) = next {
            self.timers.insert((at, Timer::Host(ix)));
        }
    }

    /// A host has been silent for too long: what ran on it is lost to the ledger. If it comes
    /// back with guests running, the fleet wins.
    fn declare_dead(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        self.hosts[ix].dead = true;
        let name = self.hosts[ix].row.id.clone();
        let claims = self.hosts[ix].claims.clone();
        self.event(now, "host.dead", None, json!({ "host": name, "claims": claims.len() }), out);
        for claim in claims {
            self.lose(now, claim, out);
        }
        let pool = self.hosts[ix].pool;
        self.stir(pool);
        self.host_answered(now, ix, out);
    }

    /// Sends a host a command, under a number above every one before.
    pub(super) fn send(
        &mut self,
        now: Timestamp,
        ix: Ix,
        op: HostOp,
        timeout: Millis,
        delay: Millis,
        out: &mut Output,
    ) -> Fence {
        let epoch = self.epoch;
        let host = &mut self.hosts[ix];
        host.next_number += 1;
        if host.next_number >= host.row.command_numbers_through {
            host.row.command_numbers_through = host.next_number + NUMBER_BLOCK;
            out.changes.push(Change::Host(host.row.clone()));
        }
        let fence = Fence { epoch, number: host.next_number };
        let deadline_uptime_millis = host.report.as_ref().and_then(|seen| {
            let uptime = seen.report.uptime_millis?;
            Some(uptime + now.since(seen.at).0 + delay.0 + timeout.0)
        });
        let command = Box::new(HostCommand { fence, deadline_uptime_millis, op });
        match host.row.address.clone() {
            Some(address) => out.effects.push(Effect::HostCommand {
                host: host.row.id.clone(),
                address,
                secret: host.row.secret.clone(),
                command,
                timeout,
                delay,
            }),
            None => out.effects.push(Effect::Unreachable { host: host.row.id.clone(), command }),
        }
        fence
    }

    /// The refusal for a pool that does not exist: it names those that do.
    pub(super) fn unknown_pool(&self, name: &PoolName) -> Refusal {
        let known: Vec<String> = self.pool_ix.keys().map(ToString::to_string).collect();
        let mut refusal = Refusal::new(
            RefusalCode::UnknownPool,
            format!("no pool {name}; there are: {}", known.join(", ")),
        );
        refusal.known = known;
        refusal
    }

    /// What a guest of this shape needs of a host of this regime, as the index counts it.
    pub(super) fn need_on(&self, pool: Ix, regime: Regime, shape: &Shape) -> i64 {
        match need(regime, &self.pools[pool].row.settings.reserve, shape) {
            plimsoll_policy::charge::Need::Anything => i64::MIN,
            plimsoll_policy::charge::Need::AtLeast(mib) => mib.signed(),
        }
    }
}

pub(super) fn new_host_row(id: HostId, pool: PoolName, now: Timestamp) -> HostRow {
    HostRow {
        id,
        pool,
        address: None,
        secret: None,
        incarnation: 0,
        command_numbers_through: 0,
        draining: false,
        enrolled_at: now,
        boot_id: None,
        old_boots: Vec::new(),
    }
}

pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
