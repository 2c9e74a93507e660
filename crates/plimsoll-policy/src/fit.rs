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
/// counted under one of them would take the request once that cause alone went away.
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
