//! What the agent counts about itself.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use plimsoll_host::{Account, DriverResult, Host, HostEvent, HostTime};
use plimsoll_types::HostOutcome;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Media type of the text that [`Metrics::text`] makes.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Word(&'static str);

impl EncodeLabelValue for Word {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.0, encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OpOutcome {
    op: Word,
    outcome: Word,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Op {
    op: Word,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: Word,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActLabel {
    act: Word,
}

/// Counters, and the gauges that are set when somebody asks.
pub(crate) struct Metrics {
    registry: Registry,
    commands: Family<OpOutcome, Counter>,
    driver_calls: Family<OpOutcome, Counter>,
    driver_seconds: Family<Op, Histogram>,
    heartbeats: Family<Outcome, Counter>,
    pressure_acts: Family<ActLabel, Counter>,
    refused_busy: Counter,
    guests: Gauge,
    starts_in_flight: Gauge,
    gate_shut: Gauge,
    admittable: Gauge<f64, AtomicU64>,
    charged: Gauge<f64, AtomicU64>,
    budget: Gauge<f64, AtomicU64>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("plimsoll_agent");
        let this = Self {
            commands: Family::default(),
            driver_calls: Family::default(),
            // 1 ms to 8 min: a thaw at one end, a large checkpoint at the other.
            driver_seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, 20))
            }),
            heartbeats: Family::default(),
            pressure_acts: Family::default(),
            refused_busy: Counter::default(),
            guests: Gauge::default(),
            starts_in_flight: Gauge::default(),
            gate_shut: Gauge::default(),
            admittable: Gauge::default(),
            charged: Gauge::default(),
            budget: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register("commands", "Commands by outcome", this.commands.clone());
        registry.register("driver_calls", "Driver calls by outcome", this.driver_calls.clone());
        registry.register(
            "driver_call_seconds",
            "How long driver calls take",
            this.driver_seconds.clone(),
        );
        registry.register("heartbeats", "Heartbeats by outcome", this.heartbeats.clone());
        registry.register(
            "pressure_acts",
            "What the host did to guests under memory pressure",
            this.pressure_acts.clone(),
        );
        registry.register(
            "refused_busy",
            "Requests refused because too many were under way",
            this.refused_busy.clone(),
        );
        registry.register("guests", "Guests, those at rest included", this.guests.clone());
        registry.register(
            "starts_in_flight",
            "Starts and restores under way",
            this.starts_in_flight.clone(),
        );
        registry.register(
            "gate_shut",
            "1 while the gate is shut under memory pressure",
            this.gate_shut.clone(),
        );
        registry.register(
            "admittable_mib",
            "Memory that the host still accepts; NaN while unknown",
            this.admittable.clone(),
        );
        registry.register("charged_mib", "Sum of all charges", this.charged.clone());
        registry.register("budget_mib", "What all charges may add up to", this.budget.clone());
        Self { registry, ..this }
    }

    pub(crate) fn command(&self, op: &'static str, outcome: &HostOutcome) {
        let outcome = Word(match outcome {
            HostOutcome::Done => "done",
            HostOutcome::Refused { code, .. } => code.as_str(),
            HostOutcome::Failed { .. } => "failed",
            HostOutcome::Fenced { .. } => "fenced",
            HostOutcome::Unknown { .. } => "unknown",
        });
        self.commands.get_or_create(&OpOutcome { op: Word(op), outcome }).inc();
    }

    pub(crate) fn busy(&self) {
        self.refused_busy.inc();
    }

    pub(crate) fn driver_call(&self, op: &'static str, result: &DriverResult, took: Duration) {
        let outcome = Word(match result {
            DriverResult::Done => "done",
            DriverResult::Failed { .. } => "failed",
            DriverResult::Rejected { .. } => "rejected",
            DriverResult::Unknown { .. } => "unknown",
        });
        self.driver_calls.get_or_create(&OpOutcome { op: Word(op), outcome }).inc();
        self.driver_seconds.get_or_create(&Op { op: Word(op) }).observe(took.as_secs_f64());
    }

    pub(crate) fn heartbeat(&self, outcome: &'static str) {
        self.heartbeats.get_or_create(&Outcome { outcome: Word(outcome) }).inc();
    }

    pub(crate) fn event(&self, event: &HostEvent) {
        let act = match event {
            HostEvent::PressurePause { .. } => "pause",
            HostEvent::PressureKill { .. } => "kill",
            HostEvent::PressureNoVictim { .. } => "none",
            _ => return,
        };
        self.pressure_acts.get_or_create(&ActLabel { act: Word(act) }).inc();
    }

    /// Sets the gauges from the host as it stands.
    pub(crate) fn see(&self, host: &Host, now: HostTime) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.guests.set(count(host.guests().count()));
        self.starts_in_flight.set(i64::from(host.starts_in_flight()));
        self.gate_shut.set(i64::from(host.gate_is_shut()));
        let account = host.account(now).ok();
        let figure = |read: fn(&Account) -> i64| {
            // Exact: memory in MiB is far below 2^53.
            account.as_ref().map_or(f64::NAN, |account| read(account) as f64)
        };
        self.admittable.set(figure(|account| account.admittable));
        self.charged.set(figure(|account| account.charged.signed()));
        self.budget.set(figure(|account| account.budget));
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a text does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
