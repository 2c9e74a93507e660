//! What a placement saw on its way to a verdict.

use alloc::{format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

/// The one reason for which a host was no candidate for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostFilter {
    /// It runs none of the drivers asked for.
    Driver,
    /// It lacks a label asked for.
    Labels,
    /// Declared dead.
    Dead,
    /// Its last report is older than the stale bound.
    Stale,
    /// It has not reported since the cell started, or said that a value is unknown.
    Unknown,
    /// An operator is emptying it.
    Draining,
    /// Set aside after repeated failures or refusals.
    SetAside,
    /// It has refused or failed this very request already.
    Tried,
    /// Set aside for a request that has waited longest.
    Held,
    /// Not enough admittable memory.
    Full,
    /// Stateful memory would exceed what the machine has.
    StatefulFull,
    /// The pool's vCPU ratio would be exceeded.
    CpuRatio,
    /// A counted resource is short.
    Counted,
    /// Its gate is shut under memory pressure.
    Pressure,
    /// At its bound of concurrent starts.
    StartsSaturated,
}

impl HostFilter {
    /// Every filter in the order in which a host is held against them: what lasts before what
    /// passes. A host counted under one of the last two would take the request once these went
    /// away.
    pub const ALL: [Self; 15] = [
        Self::Driver,
        Self::Labels,
        Self::Dead,
        Self::Stale,
        Self::Unknown,
        Self::Draining,
        Self::SetAside,
        Self::Tried,
        Self::Held,
        Self::Full,
        Self::StatefulFull,
        Self::CpuRatio,
        Self::Counted,
        Self::Pressure,
        Self::StartsSaturated,
    ];

    /// The word used in bodies and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Labels => "labels",
            Self::Dead => "dead",
            Self::Stale => "stale",
            Self::Unknown => "unknown",
            Self::Draining => "draining",
            Self::Pressure => "pressure",
            Self::SetAside => "set_aside",
            Self::Tried => "tried",
            Self::Held => "held",
            Self::StartsSaturated => "starts_saturated",
            Self::Full => "full",
            Self::StatefulFull => "stateful_full",
            Self::CpuRatio => "cpu_ratio",
            Self::Counted => "counted",
        }
    }
}

/// How many hosts fell to each filter, over all eligible pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilterCounts {
    /// Hosts looked at.
    pub hosts: u32,
    /// Hosts that would take the request.
    pub candidates: u32,
    /// Hosts per filter, indexed as [`HostFilter::ALL`].
    #[serde(flatten)]
    pub filtered: Filtered,
}

/// Hosts per filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "each field is the filter of its name")]
pub struct Filtered {
    pub driver: u32,
    pub labels: u32,
    pub dead: u32,
    pub stale: u32,
    pub unknown: u32,
    pub draining: u32,
    pub pressure: u32,
    pub set_aside: u32,
    pub tried: u32,
    pub held: u32,
    pub starts_saturated: u32,
    pub full: u32,
    pub stateful_full: u32,
    pub cpu_ratio: u32,
    pub counted: u32,
}

impl FilterCounts {
    /// Counts one host that fell to `filter`.
    pub fn count(&mut self, filter: HostFilter) {
        self.hosts += 1;
        *self.filtered.slot(filter) += 1;
    }

    /// Counts several hosts that fell to `filter`.
    pub fn count_many(&mut self, filter: HostFilter, hosts: u32) {
        self.hosts = self.hosts.saturating_add(hosts);
        let slot = self.filtered.slot(filter);
        *slot = slot.saturating_add(hosts);
    }

    /// Counts several hosts that would take the request.
    pub fn count_candidates(&mut self, hosts: u32) {
        self.hosts = self.hosts.saturating_add(hosts);
        self.candidates = self.candidates.saturating_add(hosts);
    }

    /// Counts one host that would take the request.
    pub fn count_candidate(&mut self) {
        self.hosts += 1;
        self.candidates += 1;
    }

    /// The filters that hosts fell to, in words: `1 draining, 2 full`, in the filters' order.
    #[must_use]
    pub fn by_filter(&self) -> String {
        let fell = HostFilter::ALL.into_iter().map(|filter| (self.of(filter), filter));
        let words: Vec<String> = fell
            .filter(|(hosts, _)| *hosts > 0)
            .map(|(hosts, filter)| format!("{hosts} {}", filter.as_str()))
            .collect();
        words.join(", ")
    }

    /// How many hosts fell to `filter`.
    #[must_use]
    pub fn of(&self, filter: HostFilter) -> u32 {
        let mut filtered = self.filtered;
        *filtered.slot(filter)
    }
}

impl Filtered {
    fn slot(&mut self, filter: HostFilter) -> &mut u32 {
        match filter {
            HostFilter::Driver => &mut self.driver,
            HostFilter::Labels => &mut self.labels,
            HostFilter::Dead => &mut self.dead,
            HostFilter::Stale => &mut self.stale,
            HostFilter::Unknown => &mut self.unknown,
            HostFilter::Draining => &mut self.draining,
            HostFilter::Pressure => &mut self.pressure,
            HostFilter::SetAside => &mut self.set_aside,
            HostFilter::Tried => &mut self.tried,
            HostFilter::Held => &mut self.held,
            HostFilter::StartsSaturated => &mut self.starts_saturated,
            HostFilter::Full => &mut self.full,
            HostFilter::StatefulFull => &mut self.stateful_full,
            HostFilter::CpuRatio => &mut self.cpu_ratio,
            HostFilter::Counted => &mut self.counted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_told_in_their_order_and_only_where_a_host_fell() {
        let mut counts = FilterCounts::default();
        assert_eq!(counts.by_filter(), "");
        counts.count_many(HostFilter::Full, 2);
        counts.count(HostFilter::Draining);
        counts.count_candidate();
        assert_eq!(counts.by_filter(), "1 draining, 2 full");
    }
}
