//! Which hosts may take a request. One function for the cell, for `explain` and for the oracle
//! that tests hold the index against.

use alloc::collections::BTreeMap;
use alloc::string::String;

use plimsoll_types::{
    BasisPoints, Counted, DriverSet, HostFilter, Mib, MilliCpu, Regime, ReserveRule, Vcpus,
};

use crate::charge::{Need, Shape, need};
use crate::fresh::Freshness;
use crate::host::stateful_fits;

/// What a request asks of a host.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its size.
    pub shape: Shape,
    /// Drivers that would do; a host needs one of them.
    pub drivers: DriverSet,
    /// Labels that the host must carry.
    pub labels: &'a BTreeMap<String, String>,
    /// Counted resources that it takes.
    pub counted: &'a Counted,
    /// The pool's rule of what is charged before the first measurement.
    pub reserve: &'a ReserveRule,
}

/// Everything that one host is held against, with all that was admitted since its last report
/// already netted out.
#[derive(Clone, Copy, Debug)]
pub struct HostFacts<'a> {
    /// How old its last report is; `None` when it has not reported since the cell started.
    pub freshness: Option<Freshness>,
    /// What it can run guests with.
    pub drivers: DriverSet,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Whether an operator is emptying it.
    pub draining: bool,
    /// Whether its gate is shut under memory pressure.
    pub pressure: bool,
    /// Whether it is set aside after repeated failures or refusals.
    pub set_aside: bool,
    /// Whether it has refused or failed this very request already.
    pub tried: bool,
    /// Whether it is held for another request that has waited longest.
    pub held: bool,
    /// Starts under way as reported, and those sent since.
    pub starts: u32,
    /// Most starts at once; `None` is unbounded.
    pub starts_limit: Option<u32>,
    /// The arithmetic that its gate enforces.
    pub regime: Regime,
    /// What it still admits; `None` is unknown, or shut when `pressure` says so.
    pub admittable: Option<i64>,
    /// Stateful memory promised on it, in full and with overhead.
    pub stateful: Mib,
    /// What stateful memory may add up to: its budget, or its physical memory where the budget is
    /// not known.
    pub stateful_bound: i64,
    /// All CPU.
    pub cpu_total: MilliCpu,
    /// Virtual CPUs promised on it.
    pub vcpus_promised: Vcpus,
    /// Most virtual CPUs per core in the pool; `None` never refuses for CPU.
    pub max_vcpu_ratio_bp: Option<BasisPoints>,
    /// Free counted resources.
    pub counted_free: &'a Counted,
}

/// The first filter that the host falls to, in the order of [`HostFilter::ALL`]; `None` is a
/// candidate.
///
/// Lasting causes come before passing ones. Pressure and saturation stand last, so a host that is
/// counted under one of them would take the request once these went away.
#[must_use]
pub fn filter(host: &HostFacts<'_>, request: &Request<'_>) -> Option<HostFilter> {
    class(host, request)
        .or_else(|| lasting(host))
        .or_else(|| standing_for_request(host))
        .or_else(|| memory(host, request))
        .or_else(|| size(host, request))
        .or_else(|| passing(host))
}

/// What an index serves by its classes: whether the host runs a driver and carries the labels
/// asked for.
#[must_use]
pub fn class(host: &HostFacts<'_>, request: &Request<'_>) -> Option<HostFilter> {
    if host.drivers.bits() & request.drivers.bits() == 0 {
        return Some(HostFilter::Driver);
    }
    let carries = |(key, value): (&String, &String)| host.labels.get(key) == Some(value);
    if !request.labels.iter().all(carries) {
        return Some(HostFilter::Labels);
    }
    None
}

/// What takes a host out for every request, whatever is asked: an index leaves such hosts out
/// until the fact changes.
#[must_use]
pub fn standing(host: &HostFacts<'_>) -> Option<HostFilter> {
    lasting(host).or_else(|| passing(host))
}

/// What an index serves by its order: whether the host admits as much as the request needs.
///
/// A host whose gate is shut says nothing about how much it would admit: that is no shortage.
#[must_use]
pub fn memory(host: &HostFacts<'_>, request: &Request<'_>) -> Option<HostFilter> {
    let met = match (need(host.regime, request.reserve, &request.shape), host.admittable) {
        (Need::Anything, _) | (_, None) => true,
        (need, Some(admittable)) => need.is_met_by(admittable),
    };
    if met { None } else { Some(HostFilter::Full) }
}

/// What an index does not serve and must be asked of each host that it offers.
///
/// A host is a candidate if and only if [`class`], [`standing`], [`memory`] and this say `None`.
#[must_use]
pub fn residual(host: &HostFacts<'_>, request: &Request<'_>) -> Option<HostFilter> {
    standing_for_request(host).or_else(|| size(host, request))
}

fn lasting(host: &HostFacts<'_>) -> Option<HostFilter> {
    match host.freshness {
        Some(Freshness::Dead) => return Some(HostFilter::Dead),
        Some(Freshness::Stale) => return Some(HostFilter::Stale),
        None => return Some(HostFilter::Unknown),
        Some(Freshness::Fresh) => {}
    }
    if host.admittable.is_none() && !host.pressure {
        return Some(HostFilter::Unknown);
    }
    if host.draining {
        return Some(HostFilter::Draining);
    }
    if host.set_aside {
        return Some(HostFilter::SetAside);
    }
    None
}

fn standing_for_request(host: &HostFacts<'_>) -> Option<HostFilter> {
    if host.tried {
        return Some(HostFilter::Tried);
    }
    if host.held {
        return Some(HostFilter::Held);
    }
    None
}

fn size(host: &HostFacts<'_>, request: &Request<'_>) -> Option<HostFilter> {
    let shape = &request.shape;
    if shape.stateful && !stateful_fits(host.stateful, shape.full(), host.stateful_bound) {
        return Some(HostFilter::StatefulFull);
    }
    if let Some(ratio) = host.max_vcpu_ratio_bp {
        let promised = host.vcpus_promised.saturating_add(shape.vcpus);
        if !cpu_fits(promised, host.cpu_total, ratio) {
            return Some(HostFilter::CpuRatio);
        }
    }
    let short = |(name, amount): (&String, &u64)| {
        *amount > 0 && host.counted_free.get(name).is_none_or(|free| free < amount)
    };
    if request.counted.iter().any(short) {
        return Some(HostFilter::Counted);
    }
    None
}

fn passing(host: &HostFacts<'_>) -> Option<HostFilter> {
    if host.pressure {
        return Some(HostFilter::Pressure);
    }
    if host.starts_limit.is_some_and(|limit| host.starts >= limit) {
        return Some(HostFilter::StartsSaturated);
    }
    None
}

/// Whether no host could ever take so much configured memory, going by the largest
/// `memory_mib_total` known in the eligible pools.
///
/// Without a host known there is nothing to hold it against: unknown is not zero.
#[must_use]
pub fn never_fits(memory: Mib, largest_known: Option<Mib>) -> bool {
    largest_known.is_some_and(|largest| memory > largest)
}

/// Whether so many virtual CPUs stay within `ratio` of the host's cores.
fn cpu_fits(promised: Vcpus, total: MilliCpu, ratio: BasisPoints) -> bool {
    let promised = u128::from(promised.0) * 1000 * u128::from(BasisPoints::ONE.0);
    promised <= u128::from(total.0) * u128::from(ratio.0)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use plimsoll_types::Driver;
    use proptest::prelude::*;

    use super::*;
    use crate::charge::admission_charge;

    static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();
    static NOTHING: Counted = Counted::new();
    static RULE: ReserveRule =
        ReserveRule { floor_mib: Mib(512), fraction_bp: BasisPoints(2500), ttl_seconds: 60 };

    fn host() -> HostFacts<'static> {
        HostFacts {
            freshness: Some(Freshness::Fresh),
            drivers: DriverSet::EMPTY.with(Driver::Process),
            labels: &NO_LABELS,
            draining: false,
            pressure: false,
            set_aside: false,
            tried: false,
            held: false,
            starts: 0,
            starts_limit: Some(8),
            regime: Regime::WorkingSet,
            admittable: Some(8192),
            stateful: Mib::ZERO,
            stateful_bound: 16_384,
            cpu_total: MilliCpu(4000),
            vcpus_promised: Vcpus(4),
            max_vcpu_ratio_bp: None,
            counted_free: &NOTHING,
        }
    }

    fn request() -> Request<'static> {
        Request {
            shape: Shape { memory: Mib(4096), overhead: Mib(64), vcpus: Vcpus(2), stateful: false },
            drivers: DriverSet::ALL,
            labels: &NO_LABELS,
            counted: &NOTHING,
            reserve: &RULE,
        }
    }

    fn said(host: HostFacts<'_>) -> Option<HostFilter> {
        filter(&host, &request())
    }

    #[test]
    fn a_fresh_empty_host_is_a_candidate() {
        assert_eq!(said(host()), None);
    }

    #[test]
    fn each_fact_alone_takes_a_host_out_under_its_own_name() {
        let dead = HostFacts { freshness: Some(Freshness::Dead), ..host() };
        assert_eq!(said(dead), Some(HostFilter::Dead));
        let stale = HostFacts { freshness: Some(Freshness::Stale), ..host() };
        assert_eq!(said(stale), Some(HostFilter::Stale));
        assert_eq!(said(HostFacts { freshness: None, ..host() }), Some(HostFilter::Unknown));
        assert_eq!(said(HostFacts { draining: true, ..host() }), Some(HostFilter::Draining));
        assert_eq!(said(HostFacts { set_aside: true, ..host() }), Some(HostFilter::SetAside));
        assert_eq!(said(HostFacts { tried: true, ..host() }), Some(HostFilter::Tried));
        assert_eq!(said(HostFacts { held: true, ..host() }), Some(HostFilter::Held));
        assert_eq!(said(HostFacts { starts: 8, ..host() }), Some(HostFilter::StartsSaturated));
        assert_eq!(said(HostFacts { starts: 800, starts_limit: None, ..host() }), None);
        let drivers = DriverSet::EMPTY.with(Driver::Gvisor);
        let only_process = Request { drivers: DriverSet::EMPTY.with(Driver::Process), ..request() };
        let filtered = filter(&HostFacts { drivers, ..host() }, &only_process);
        assert_eq!(filtered, Some(HostFilter::Driver));
    }

    #[test]
    fn the_last_mebibyte_decides() {
        // A quarter of 4096 and 64 of overhead.
        assert_eq!(said(HostFacts { admittable: Some(1088), ..host() }), None);
        let short = HostFacts { admittable: Some(1087), ..host() };
        assert_eq!(said(short), Some(HostFilter::Full));
        let committed = HostFacts { regime: Regime::Committed, ..host() };
        assert_eq!(said(HostFacts { admittable: Some(4160), ..committed }), None);
        let short = HostFacts { admittable: Some(4159), ..committed };
        assert_eq!(said(short), Some(HostFilter::Full));
    }

    #[test]
    fn unknown_is_not_zero_and_zero_is_not_unknown() {
        let unknown = HostFacts { admittable: None, ..host() };
        assert_eq!(said(unknown), Some(HostFilter::Unknown));
        assert_eq!(said(HostFacts { regime: Regime::None, ..unknown }), Some(HostFilter::Unknown));
        let zero = HostFacts { admittable: Some(0), ..host() };
        assert_eq!(said(zero), Some(HostFilter::Full));
        assert_eq!(said(HostFacts { regime: Regime::None, ..zero }), None);
    }

    #[test]
    fn a_shut_gate_is_pressure_and_not_a_missing_value() {
        let shut = HostFacts { pressure: true, admittable: None, ..host() };
        assert_eq!(said(shut), Some(HostFilter::Pressure));
        // What would refuse after the pressure is gone is named instead.
        assert_eq!(said(HostFacts { draining: true, ..shut }), Some(HostFilter::Draining));
        let full = HostFacts { admittable: Some(0), ..shut };
        assert_eq!(said(full), Some(HostFilter::Full));
    }

    #[test]
    fn a_saturated_host_without_room_is_full() {
        let saturated = HostFacts { starts: 8, admittable: Some(100), ..host() };
        assert_eq!(said(saturated), Some(HostFilter::Full));
    }

    #[test]
    fn stateful_memory_is_fitted_in_full_in_every_regime() {
        let database = Request { shape: Shape { stateful: true, ..request().shape }, ..request() };
        for regime in [Regime::None, Regime::Committed, Regime::WorkingSet] {
            let roomy = HostFacts { regime, admittable: Some(4160), ..host() };
            assert_eq!(filter(&roomy, &database), None);
            let short = HostFacts { admittable: Some(4159), ..roomy };
            assert_eq!(filter(&short, &database), Some(HostFilter::Full));
            let promised = HostFacts { stateful: Mib(16_384 - 4159), ..roomy };
            assert_eq!(filter(&promised, &database), Some(HostFilter::StatefulFull));
        }
    }

    #[test]
    fn cpu_refuses_only_where_the_pool_sets_a_ratio() {
        let crowded = HostFacts { vcpus_promised: Vcpus(400), ..host() };
        assert_eq!(said(crowded), None);
        // 4 cores at 1.5: six vCPUs, of which four are promised.
        let ratio = Some(BasisPoints(15_000));
        assert_eq!(said(HostFacts { max_vcpu_ratio_bp: ratio, ..host() }), None);
        let one_more = HostFacts { vcpus_promised: Vcpus(5), max_vcpu_ratio_bp: ratio, ..host() };
        assert_eq!(said(one_more), Some(HostFilter::CpuRatio));
    }

    #[test]
    fn every_counted_resource_that_is_asked_for_is_fitted() {
        let free = Counted::from([("gpus".to_string(), 1), ("hugepages".to_string(), 512)]);
        let with = |name: &str, amount| Counted::from([(name.to_string(), amount)]);
        let host = HostFacts { counted_free: &free, ..host() };
        let says = |counted: &Counted| filter(&host, &Request { counted, ..request() });
        assert_eq!(says(&with("hugepages", 512)), None);
        assert_eq!(says(&with("hugepages", 513)), Some(HostFilter::Counted));
        assert_eq!(says(&with("disk_mib", 1)), Some(HostFilter::Counted));
        assert_eq!(says(&with("disk_mib", 0)), None);
    }

    #[test]
    fn labels_must_all_match() {
        let zone = BTreeMap::from([("zone".to_string(), "a".to_string())]);
        let other = BTreeMap::from([("zone".to_string(), "b".to_string())]);
        let wants = Request { labels: &zone, ..request() };
        assert_eq!(filter(&host(), &wants), Some(HostFilter::Labels));
        assert_eq!(
            filter(&HostFacts { labels: &other, ..host() }, &wants),
            Some(HostFilter::Labels)
        );
        assert_eq!(filter(&HostFacts { labels: &zone, ..host() }, &wants), None);
    }

    #[test]
    fn a_request_above_the_largest_host_never_fits() {
        assert!(never_fits(Mib(32_769), Some(Mib(32_768))));
        assert!(!never_fits(Mib(32_768), Some(Mib(32_768))));
        assert!(!never_fits(Mib(32_768), None));
    }

    /// Says for each filter by itself whether the host falls to it, in words of its own.
    fn oracle(host: &HostFacts<'_>, request: &Request<'_>) -> Vec<HostFilter> {
        let shape = &request.shape;
        let full = shape.memory.0 + shape.overhead.0;
        let fits_memory = match host.admittable {
            None => true,
            Some(_) if host.regime == Regime::None && !shape.stateful => true,
            Some(left) => left >= admission_charge(host.regime, request.reserve, shape).0 as i64,
        };
        let cpu_over = host.max_vcpu_ratio_bp.is_some_and(|ratio| {
            (host.vcpus_promised.0 + shape.vcpus.0) * 10_000_000 > host.cpu_total.0 * ratio.0
        });
        let wants_gpu = request.counted.get("gpus").copied().unwrap_or(0);
        let has_gpu = host.counted_free.get("gpus").copied().unwrap_or(0);
        HostFilter::ALL
            .into_iter()
            .filter(|filter| match filter {
                HostFilter::Driver => host.drivers.bits() & request.drivers.bits() == 0,
                HostFilter::Labels => {
                    request.labels.iter().any(|(k, v)| host.labels.get(k) != Some(v))
                }
                HostFilter::Dead => host.freshness == Some(Freshness::Dead),
                HostFilter::Stale => host.freshness == Some(Freshness::Stale),
                HostFilter::Unknown => {
                    host.freshness.is_none() || (host.admittable.is_none() && !host.pressure)
                }
                HostFilter::Draining => host.draining,
                HostFilter::SetAside => host.set_aside,
                HostFilter::Tried => host.tried,
                HostFilter::Held => host.held,
                HostFilter::Full => !fits_memory,
                HostFilter::StatefulFull => {
                    shape.stateful && (host.stateful.0 + full) as i64 > host.stateful_bound
                }
                HostFilter::CpuRatio => cpu_over,
                HostFilter::Counted => wants_gpu > has_gpu,
                HostFilter::Pressure => host.pressure,
                HostFilter::StartsSaturated => {
                    host.starts_limit.is_some_and(|limit| host.starts >= limit)
                }
            })
            .collect()
    }

    fn rarely() -> impl Strategy<Value = bool> {
        proptest::bool::weighted(0.1)
    }

    proptest! {
        #[test]
        fn the_first_filter_of_all_that_apply_is_said_and_the_parts_agree(
            (freshness, drivers, draining, pressure) in (0_u8..12, 1_u8..4, rarely(), rarely()),
            (set_aside, tried, held) in (rarely(), rarely(), rarely()),
            (starts, starts_limit) in (0_u32..10, proptest::option::of(1_u32..12)),
            regime in 0_usize..3,
            admittable in proptest::option::weighted(0.9, -1000_i64..9000),
            (stateful, stateful_bound) in (0_u64..9000, 0_i64..12_000),
            (promised, ratio) in (0_u64..16, proptest::option::of(5_000_u64..40_000)),
            gpus_free in 0_u64..3,
            zone in 0_u8..2,
            (memory, overhead, vcpus) in (1_u64..9000, 0_u64..128, 0_u64..4),
            (is_stateful, asked, gpus, wants_zone) in
                (any::<bool>(), 1_u8..4, 0_u64..2, rarely()),
        ) {
            let labels = BTreeMap::from([("zone".to_string(), zone.to_string())]);
            let wanted = if wants_zone {
                BTreeMap::from([("zone".to_string(), "1".to_string())])
            } else {
                BTreeMap::new()
            };
            let counted_free = Counted::from([("gpus".to_string(), gpus_free)]);
            let counted = Counted::from([("gpus".to_string(), gpus)]);
            let host = HostFacts {
                freshness: match freshness {
                    0 => None,
                    1 => Some(Freshness::Stale),
                    2 => Some(Freshness::Dead),
                    _ => Some(Freshness::Fresh),
                },
                drivers: DriverSet::from_bits(drivers),
                labels: &labels,
                draining,
                pressure,
                set_aside,
                tried,
                held,
                starts,
                starts_limit,
                regime: [Regime::None, Regime::Committed, Regime::WorkingSet][regime],
                admittable,
                stateful: Mib(stateful),
                stateful_bound,
                cpu_total: MilliCpu(4000),
                vcpus_promised: Vcpus(promised),
                max_vcpu_ratio_bp: ratio.map(BasisPoints),
                counted_free: &counted_free,
            };
            let request = Request {
                shape: Shape {
                    memory: Mib(memory),
                    overhead: Mib(overhead),
                    vcpus: Vcpus(vcpus),
                    stateful: is_stateful,
                },
                drivers: DriverSet::from_bits(asked),
                labels: &wanted,
                counted: &counted,
                reserve: &RULE,
            };
            let applying = oracle(&host, &request);
            prop_assert_eq!(filter(&host, &request), applying.first().copied());
            let parts = [
                class(&host, &request),
                standing(&host),
                memory_of(&host, &request),
                residual(&host, &request),
            ];
            prop_assert_eq!(parts.iter().all(Option::is_none), applying.is_empty());
            for part in parts.into_iter().flatten() {
                prop_assert!(applying.contains(&part));
            }
            // The promise that the capacity code rests on.
            let passes =
                |filter: &HostFilter| matches!(filter, HostFilter::Pressure | HostFilter::StartsSaturated);
            if applying.first().is_some_and(passes) {
                prop_assert!(applying.iter().all(passes));
            }
        }
    }

    fn memory_of(host: &HostFacts<'_>, request: &Request<'_>) -> Option<HostFilter> {
        super::memory(host, request)
    }
}
