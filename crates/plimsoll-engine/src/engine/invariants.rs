//! Every invariant that can be seen in one state, checked by brute force over all records.

use std::collections::BTreeMap;

use plimsoll_policy::consumption::Amounts;
use plimsoll_policy::slots::holds_slot;
use plimsoll_types::{ClaimId, Counted, HostFilter, SandboxStatus, Timestamp};

use super::state::{Claim, Ix, Use, Waiter};
use super::totals::{ReservationShare, SandboxShare, Sums, Totals};
use super::{Engine, Violation};

impl Engine {
    /// Checks every invariant by brute force over all records. Slow: for tests and the simulator.
    #[must_use]
    pub fn check(&self, now: Timestamp) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut broken = |id: &'static str, detail: String| found.push(Violation { id, detail });
        self.check_sums(&mut broken);
        self.check_pools(&mut broken);
        self.check_hosts(&mut broken);
        self.check_waiters(&mut broken);
        for (_, reservation) in self.reservations.iter() {
            let row = &reservation.row;
            let lapsed = row.state == crate::rows::ReservationState::Reserved
                && now >= row.expires_at + plimsoll_types::Millis(1_000);
            if lapsed {
                broken("I5", format!("{} holds beyond its expiry", row.id));
            }
        }
        found
    }

    fn check_sums(&self, broken: &mut impl FnMut(&'static str, String)) {
        let mut used: BTreeMap<u32, Use> = BTreeMap::new();
        for (_, sandbox) in self.sandboxes.iter() {
            if sandbox.row.status.counts_for_quota() {
                let one = Use::one(sandbox.row.memory_mib, sandbox.row.vcpus);
                used.entry(sandbox.tenant).or_default().add(one);
            }
        }
        for (_, reservation) in self.reservations.iter() {
            if reservation.row.state.holds() {
                let one = Use::one(reservation.row.memory_mib, reservation.row.vcpus);
                used.entry(reservation.tenant).or_default().add(one);
            }
        }
        self.check_totals(broken);
        self.check_accounts(broken);
        for (ix, tenant) in self.tenants.iter() {
            let sum = used.get(&ix).copied().unwrap_or_default();
            if tenant.id != tenant.row().id || tenant.suspended != tenant.row().suspended.is_some()
            {
                broken("I13", format!("{}: its row says otherwise", tenant.id));
            }
            if sum != tenant.used {
                let detail =
                    format!("{}: {sum:?} by records, {:?} kept", tenant.row().id, tenant.used);
                broken("I13", detail);
            }
        }
        let mut waiting: BTreeMap<u32, u32> = BTreeMap::new();
        for waiter in self.pools.iter().flat_map(|(_, pool)| pool.queue.values()) {
            let tenant = match waiter {
                Waiter::Create(ix) | Waiter::Resume(ix) => self.sandboxes[*ix].tenant,
                Waiter::Reserve(waiting) => waiting.tenant,
            };
            *waiting.entry(tenant).or_default() += 1;
        }
        for (ix, tenant) in self.tenants.iter() {
            let stand = waiting.get(&ix).copied().unwrap_or_default();
            if stand != tenant.waiting {
                let detail = format!("{}: {stand} wait, {} kept", tenant.row().id, tenant.waiting);
                broken("I13", detail);
            }
        }
    }

    /// What tenants have used is no less than what those records that are still here say, those who
    /// have used most are shown with what they have used, and whatever leads from one place to
    /// another leads back.
    fn check_accounts(&self, broken: &mut impl FnMut(&'static str, String)) {
        let mut sums: BTreeMap<(u32, Timestamp), Amounts> = BTreeMap::new();
        let mut each: BTreeMap<(u32, ClaimId), (Timestamp, Amounts)> = BTreeMap::new();
        let mut alive: BTreeMap<u32, usize> = BTreeMap::new();
        let mut see = |tenant, id, meter: Option<&super::meter::ClaimMeter>, counts: bool| {
            *alive.entry(tenant).or_default() += usize::from(counts);
            if let Some((period, used)) = meter.map(super::meter::ClaimMeter::in_period) {
                let sum = sums.entry((tenant, period)).or_default();
                *sum = sum.plus(used);
                each.insert((tenant, id), (period, used));
            }
        };
        for (_, one) in self.sandboxes.iter() {
            let counts = one.row.status.counts_for_quota();
            see(one.tenant, ClaimId::Sandbox(one.row.id), one.meter.as_deref(), counts);
        }
        for (_, one) in self.reservations.iter() {
            let counts = one.row.state.holds();
            see(one.tenant, ClaimId::Reservation(one.row.id), one.meter.as_deref(), counts);
        }
        for (ix, tenant) in self.tenants.iter() {
            let id = &tenant.row().id;
            let listed = alive.get(&ix).copied().unwrap_or_default();
            if listed != tenant.claims.len() {
                let kept = tenant.claims.len();
                broken("I13", format!("{id}: {listed} claims by records, {kept} kept"));
            }
            let Some(account) = &tenant.account else { continue };
            let period = account.period.start;
            let (sum, kept) = (sums.get(&(ix, period)).copied().unwrap_or_default(), account.used);
            if sum.cpu_millis > kept.cpu_millis
                || sum.charged_mib_millis > kept.charged_mib_millis
                || sum.egress_bytes > kept.egress_bytes
            {
                broken("I13", format!("{id}: {sum:?} used by records, {kept:?} kept"));
            }
            for (claim, used) in account.top.by("cpu_seconds") {
                let known = each.get(&(ix, claim)).filter(|(of, _)| *of == period);
                if let Some((_, known)) = known.filter(|(_, known)| *known != used) {
                    broken("I13", format!("{claim}: {known:?} by its record, {used:?} on top"));
                }
            }
            let timer = account.timer.map(|at| (at, super::state::Timer::Tenant(ix)));
            if timer.is_some_and(|timer| !self.timers.contains(&timer)) {
                broken("I13", format!("{id}: its timer is not set"));
            }
        }
        for (event, ix) in &self.notices {
            let account = self.tenants.get(*ix).and_then(|tenant| tenant.account.as_deref());
            let said = account.is_some_and(|account| {
                [account.suspended.event, account.deletion.event].contains(&Some(*event))
            });
            if !said {
                broken("I13", format!("{event} is followed as a notice and is none"));
            }
        }
    }

    fn check_totals(&self, broken: &mut impl FnMut(&'static str, String)) {
        let mut totals = Totals::default();
        for (_, sandbox) in self.sandboxes.iter() {
            totals.live += u64::from(sandbox.row.status.counts_for_quota());
            totals.queued += u64::from(sandbox.row.status == SandboxStatus::Queued);
        }
        for (_, reservation) in self.reservations.iter() {
            totals.held += u64::from(reservation.row.state.holds());
        }
        if totals != self.totals {
            broken("I13", format!("{totals:?} by records, {:?} kept", self.totals));
        }
        for (_, host) in self.hosts.iter() {
            let mut sums = Sums::default();
            for claim in &host.claims {
                match claim {
                    Claim::Sandbox(ix) => {
                        let sandbox = &self.sandboxes[*ix];
                        if let Some(share) = SandboxShare::of(sandbox) {
                            sums.add(&share.sums(sandbox.row.memory_mib));
                        }
                    }
                    Claim::Reservation(ix) => {
                        let reservation = &self.reservations[*ix];
                        let share = ReservationShare::of(reservation);
                        sums.add(&share.sums(reservation.row.memory_mib));
                    }
                }
            }
            if sums != host.sums {
                let kept = &host.sums;
                broken("I13", format!("host {}: {sums:?} by records, {kept:?} kept", host.row.id));
            }
        }
    }

    fn check_pools(&self, broken: &mut impl FnMut(&'static str, String)) {
        for (ix, pool) in self.pools.iter() {
            let by_records = self
                .sandboxes
                .iter()
                .filter(|(_, s)| {
                    s.pool == Some(ix) && holds_slot(s.row.status, s.row.slot_released)
                })
                .count()
                + self
                    .reservations
                    .iter()
                    .filter(|(_, r)| r.pool == ix && r.row.state.holds())
                    .count();
            if u64::try_from(by_records).ok() != Some(pool.held) {
                broken(
                    "I13",
                    format!(
                        "pool {}: {by_records} slots by records, {} kept",
                        pool.row.name, pool.held
                    ),
                );
            }
            let released = self.sandboxes.iter().filter(|(_, s)| {
                s.pool == Some(ix) && s.row.status == SandboxStatus::Paused && s.row.slot_released
            });
            if u64::try_from(released.count()).ok() != Some(pool.released) {
                broken("I13", format!("pool {}: {} released", pool.row.name, pool.released));
            }
            for (expected, victim) in &pool.pausing {
                let sandbox = &self.sandboxes[*victim];
                if sandbox.row.status != SandboxStatus::Pausing
                    || sandbox.rare().pause_expected != Some(*expected)
                {
                    let (id, status) = (sandbox.row.id, sandbox.row.status);
                    broken("I13", format!("{id} counts as being paused and is {status}"));
                }
            }
            let listed: usize = pool
                .partitions
                .iter()
                .map(|partition| {
                    let partition = &self.partitions[*partition];
                    let out: u32 = partition.out.values().sum();
                    partition.ready.len() + usize::try_from(out).unwrap_or(usize::MAX)
                })
                .sum();
            if listed != pool.hosts.len() {
                broken(
                    "I13",
                    format!(
                        "pool {}: {listed} hosts listed of {}",
                        pool.row.name,
                        pool.hosts.len()
                    ),
                );
            }
        }
    }

    fn check_hosts(&self, broken: &mut impl FnMut(&'static str, String)) {
        for (ix, host) in self.hosts.iter() {
            let (mut pending, mut stateful, mut vcpus, mut starts) = (0, 0, 0, 0);
            for claim in &host.claims {
                match claim {
                    Claim::Sandbox(s) => {
                        let sandbox = &self.sandboxes[*s];
                        if let Some(charge) = sandbox.pending {
                            pending += charge.charge;
                            starts += u32::from(charge.starting);
                        }
                        if super::ledger::occupies(sandbox) {
                            vcpus += sandbox.row.vcpus.0;
                            if sandbox.row.stateful {
                                stateful += sandbox.row.memory_mib.0 + sandbox.row.overhead_mib.0;
                            }
                        }
                    }
                    Claim::Reservation(r) => {
                        let reservation = &self.reservations[*r];
                        pending += super::reservation::pending(reservation).0;
                        vcpus += reservation.row.vcpus.0;
                        if reservation.row.stateful {
                            stateful += reservation.row.memory_mib.0;
                        }
                    }
                }
            }
            self.check_listing(ix, broken);
            let holds = self.pools.iter().flat_map(|(_, pool)| pool.holds.values());
            let holds = holds.filter(|hold| hold.host == Some(ix)).count();
            if u32::try_from(holds).ok() != Some(host.holds) {
                broken("I13", format!("host {}: {holds} holds, {} kept", host.row.id, host.holds));
            }
            let kept = (host.pending, host.stateful, host.vcpus, host.pending_starts);
            if kept != (pending, stateful, vcpus, starts) {
                let sums = (pending, stateful, vcpus, starts);
                broken("I13", format!("host {}: {sums:?} by records, {kept:?} kept", host.row.id));
            }
            let listed = host.listed.map(|listed| listed.standing);
            if listed != Some(self.standing(ix)) {
                broken(
                    "I13",
                    format!(
                        "host {} stands {:?}, listed {listed:?}",
                        host.row.id,
                        self.standing(ix)
                    ),
                );
            }
        }
    }

    /// What an index says of a host is what follows from its record: a placement reads nothing
    /// else.
    fn check_listing(&self, ix: Ix, broken: &mut impl FnMut(&'static str, String)) {
        let host = &self.hosts[ix];
        let Some(listed) = host.listed else { return };
        let partition = &self.partitions[listed.partition];
        let slot = self.slot(ix);
        let (ready, saturated) = match listed.standing {
            None => (Some(slot), None),
            Some(HostFilter::StartsSaturated) => (None, Some(slot)),
            Some(_) => (None, None),
        };
        let found = (partition.ready.get(ix), partition.saturated.get(ix));
        if found != (ready, saturated) {
            let wanted = (ready, saturated);
            broken("I13", format!("host {}: {wanted:?}, indexed {found:?}", host.row.id));
        }
        let (mut vcpus, mut counted) = (0, Counted::new());
        for claim in &host.claims {
            match claim {
                Claim::Sandbox(s) => {
                    let sandbox = &self.sandboxes[*s];
                    if sandbox.pending.is_none_or(|pending| pending.thaws) {
                        continue;
                    }
                    vcpus += sandbox.row.vcpus.0;
                    for (name, amount) in &sandbox.row.spec.counted {
                        *counted.entry(name.clone()).or_default() += amount;
                    }
                }
                Claim::Reservation(r) => {
                    vcpus += super::reservation::pending(&self.reservations[*r]).1;
                }
            }
        }
        counted.retain(|_, amount| *amount > 0);
        let kept = (host.pending_vcpus, &host.pending_counted);
        if kept != (vcpus, &counted) {
            let sums = (vcpus, counted);
            broken("I13", format!("host {}: {sums:?} by records, {kept:?} kept", host.row.id));
        }
    }

    fn check_waiters(&self, broken: &mut impl FnMut(&'static str, String)) {
        let mut victims: BTreeMap<plimsoll_types::SandboxId, u32> = BTreeMap::new();
        for (_, sandbox) in self.sandboxes.iter() {
            if sandbox.row.status == SandboxStatus::Pausing
                && let Some(waiter) = sandbox.row.preempted_for
            {
                *victims.entry(waiter).or_default() += 1;
            }
            let queued = sandbox.row.status == SandboxStatus::Queued;
            if queued && sandbox.rare().place.is_none() {
                broken("I7", format!("{} is queued and stands in no queue", sandbox.row.id));
            }
        }
        for (waiter, number) in victims {
            if number > 1 {
                broken("I12", format!("{number} victims are being paused for {waiter}"));
            }
        }
    }
}
