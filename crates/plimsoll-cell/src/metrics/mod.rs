//! Counters and timings of the cell, and the gauges that a scrape asks the engine for.
//!
//! Counters live as long as the process. Gauges are built anew for each scrape from what the
//! engine says, so that the figures of a host or pool that is gone go with it.

mod gauges;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use plimsoll_engine::{Gauges, Observation};
use plimsoll_policy::Invariant;
use plimsoll_policy::lifecycle::Action;
use plimsoll_types::{PolicyMode, PoolName, PreemptionMode, RefusalCode};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The content type of what [`Metrics::encode`] writes.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels<const N: usize> = [(&'static str, String); N];
type Counters<const N: usize> = Family<Labels<N>, Counter>;

/// All that the cell counts and times.
pub(crate) struct Metrics {
    registry: Registry,
    admissions: Counters<2>,
    refusals: Counters<2>,
    decision_seconds: Histogram,
    first_refusal_to_success_seconds: Histogram,
    retry_after_error_seconds: Histogram,
    resumes_queued: Counters<1>,
    resume_wait_seconds: Family<Labels<1>, Histogram, fn() -> Histogram>,
    preemptions: Counters<2>,
    lifecycle_actions: Counters<2>,
    corrections: Counters<1>,
    invariant_violations: Counters<1>,
    commit_seconds: Histogram,
    batch_size: Histogram,
    commit_failures: Counters<1>,
    calls_waiting: Gauge,
    pub(crate) refusal_rows_dropped: Counter,
    pub(crate) host_calls: HostCalls,
    policy_rejected: Counters<1>,
    webhook_deliveries: Counters<1>,
    pub(crate) tenant_requests: Counter,
    pub(crate) terms: Counter,
}

/// Calls to hosts.
#[derive(Clone, Debug)]
pub(crate) struct HostCalls(Counters<2>);

impl HostCalls {
    /// A call ended.
    pub(crate) fn called(&self, what: &'static str, outcome: &'static str) {
        let labels = [("call", what.to_owned()), ("outcome", outcome.to_owned())];
        self.0.get_or_create(&labels).inc();
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// From 1 ms to about 17 minutes.
fn wait_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 4.0, 11))
}

impl Metrics {
    /// Everything at zero. Label values that are known beforehand exist from the start, so that a
    /// rate over them has a beginning.
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("plimsoll");
        let metrics = Self {
            admissions: counters(&mut registry, "admissions", "Requests admitted"),
            refusals: counters(&mut registry, "refusals", "Requests refused, by code"),
            decision_seconds: timing(
                &mut registry,
                "decision",
                "Time inside the engine for one verdict",
                // From 250 ns to about 0.5 s.
                Histogram::new(exponential_buckets(0.000_000_25, 2.0, 22)),
            ),
            first_refusal_to_success_seconds: timing(
                &mut registry,
                "first_refusal_to_success",
                "From the first refusal of an idempotency key to its success",
                wait_buckets(),
            ),
            retry_after_error_seconds: timing(
                &mut registry,
                "retry_after_error",
                "How much later than Retry-After said room came; negative is earlier",
                Histogram::new([-60.0, -10.0, -3.0, -1.0, 0.0, 1.0, 3.0, 10.0, 60.0, 300.0]),
            ),
            resumes_queued: counters(&mut registry, "resumes_queued", "Resumes that had to wait"),
            resume_wait_seconds: {
                let family: Family<_, _, fn() -> Histogram> =
                    Family::new_with_constructor(wait_buckets);
                let help = "How long queued resumes waited";
                registry.register_with_unit("resume_wait", help, Unit::Seconds, family.clone());
                family
            },
            preemptions: counters(&mut registry, "preemptions", "Guests paused to make room"),
            lifecycle_actions: counters(
                &mut registry,
                "lifecycle_actions",
                "Pauses and deletions by lifecycle limits",
            ),
            corrections: counters(
                &mut registry,
                "corrections",
                "Records corrected to what their host reports",
            ),
            invariant_violations: counters(
                &mut registry,
                "invariant_violations",
                "Invariants found broken; the input was refused",
            ),
            commit_seconds: timing(
                &mut registry,
                "store_commit",
                "Time to make one batch durable",
                // From 50 us to about 13 s.
                Histogram::new(exponential_buckets(0.000_05, 4.0, 10)),
            ),
            batch_size: {
                let sizes = Histogram::new(exponential_buckets(1.0, 4.0, 9));
                registry.register("store_batch_size", "Writes in one batch", sizes.clone());
                sizes
            },
            commit_failures: counters(
                &mut registry,
                "store_commit_failures",
                "Batches that the store did not take",
            ),
            calls_waiting: {
                let gauge = Gauge::default();
                let help = "Calls that wait for a sandbox to get somewhere";
                registry.register("calls_waiting", help, gauge.clone());
                gauge
            },
            refusal_rows_dropped: {
                let counter = Counter::default();
                let help = "Decisions of refusals left out of the log under overload";
                registry.register("refusal_rows_dropped", help, counter.clone());
                counter
            },
            host_calls: HostCalls(counters(
                &mut registry,
                "host_calls",
                "Calls to hosts, by what they were and how they ended",
            )),
            policy_rejected: counters(
                &mut registry,
                "policy_rejected",
                "Policy snapshots that were not accepted",
            ),
            webhook_deliveries: counters(
                &mut registry,
                "webhook_deliveries",
                "Webhook delivery attempts, by outcome",
            ),
            tenant_requests: {
                let counter = Counter::default();
                let help = "Requests under tenants' keys, as handed to the engine";
                registry.register("tenant_requests", help, counter.clone());
                counter
            },
            terms: {
                let counter = Counter::default();
                let help = "Times that the state was loaded from the store";
                registry.register("terms", help, counter.clone());
                counter
            },
            registry,
        };
        for code in RefusalCode::ALL {
            let _ = metrics.refusals.get_or_create(&refusal_labels(*code, None));
        }
        for invariant in Invariant::ALL {
            let _ = metrics.invariant_violations.get_or_create(&one("id", invariant.id()));
        }
        for outcome in plimsoll_store::DeliveryOutcome::ALL {
            let _ = metrics.webhook_deliveries.get_or_create(&one("outcome", outcome.as_str()));
        }
        metrics
    }

    /// One verdict took so long.
    pub(crate) fn decided(&self, took: Duration) {
        self.decision_seconds.observe(took.as_secs_f64());
    }

    /// One attempt to deliver an event came out.
    pub(crate) fn webhook_attempted(&self, outcome: plimsoll_store::DeliveryOutcome) {
        self.webhook_deliveries.get_or_create(&one("outcome", outcome.as_str())).inc();
    }

    /// One batch of so many writes took so long.
    pub(crate) fn committed(&self, writes: usize, took: Duration) {
        self.batch_size.observe(writes as f64);
        self.commit_seconds.observe(took.as_secs_f64());
    }

    /// The store did not take a batch.
    pub(crate) fn commit_failed(&self, why: &'static str) {
        self.commit_failures.get_or_create(&one("why", why)).inc();
    }

    /// A refusal that was made outside the engine.
    pub(crate) fn refused_outside(&self, code: RefusalCode) {
        self.refusals.get_or_create(&refusal_labels(code, None)).inc();
    }

    /// A policy snapshot was not accepted.
    pub(crate) fn policy_rejected(&self, why: &'static str) {
        self.policy_rejected.get_or_create(&one("why", why)).inc();
    }

    /// Broken invariants by id, those that were found broken.
    pub(crate) fn violations(&self) -> BTreeMap<String, u64> {
        let count = |id: &&Invariant| {
            let labels = one("id", id.id());
            (id.id().to_owned(), self.invariant_violations.get_or_create(&labels).get())
        };
        Invariant::ALL.iter().map(|id| count(&id)).filter(|(_, count)| *count > 0).collect()
    }

    /// Counts what the engine saw. Equal admissions and refusals of one batch are added up first.
    pub(crate) fn observe(&self, observations: &[Observation]) {
        let mut admissions: HashMap<(&PoolName, PolicyMode), u64> = HashMap::new();
        let mut refusals: HashMap<(RefusalCode, Option<&PoolName>), u64> = HashMap::new();
        for observation in observations {
            match observation {
                Observation::Admission(pool, mode) => {
                    *admissions.entry((pool, *mode)).or_default() += 1;
                }
                Observation::Refusal(code, pool) => {
                    *refusals.entry((*code, pool.as_ref())).or_default() += 1;
                }
                other => self.observe_rare(other),
            }
        }
        for ((pool, mode), count) in admissions {
            let labels = [("pool", pool.to_string()), ("mode", mode.to_string())];
            self.admissions.get_or_create(&labels).inc_by(count);
        }
        for ((code, pool), count) in refusals {
            self.refusals.get_or_create(&refusal_labels(code, pool)).inc_by(count);
        }
    }

    fn observe_rare(&self, observation: &Observation) {
        match observation {
            Observation::Admission(..) | Observation::Refusal(..) => {}
            Observation::FirstRefusalToSuccess(took) => {
                self.first_refusal_to_success_seconds.observe(took.get() as f64 / 1e3);
            }
            Observation::RetryAfterError(millis) => {
                self.retry_after_error_seconds.observe(*millis as f64 / 1e3);
            }
            Observation::ResumeQueued(pool) => {
                self.resumes_queued.get_or_create(&one("pool", pool.as_str())).inc();
            }
            Observation::ResumeWait(pool, took) => {
                let waits = self.resume_wait_seconds.get_or_create(&one("pool", pool.as_str()));
                waits.observe(took.get() as f64 / 1e3);
            }
            Observation::Preemption(pool, mode) => {
                let labels = [("pool", pool.to_string()), ("mode", (*mode).to_owned())];
                self.preemptions.get_or_create(&labels).inc();
            }
            Observation::Lifecycle(action, pool) => {
                let labels = [("action", (*action).to_owned()), ("pool", pool.to_string())];
                self.lifecycle_actions.get_or_create(&labels).inc();
            }
            Observation::Correction(what) => {
                self.corrections.get_or_create(&one("what", what)).inc();
            }
            Observation::Violation(id) => {
                tracing::error!(invariant = id, "an invariant was found broken; input refused");
                self.invariant_violations.get_or_create(&one("id", id)).inc();
            }
        }
    }

    /// Has a pool's counters at zero before their first sample, so that a rate over them has a
    /// beginning.
    fn begin(&self, pool: &PoolName) {
        let name = || pool.to_string();
        for mode in PolicyMode::ALL {
            let labels = [("pool", name()), ("mode", mode.to_string())];
            let _ = self.admissions.get_or_create(&labels);
        }
        for code in RefusalCode::ALL {
            let _ = self.refusals.get_or_create(&refusal_labels(*code, Some(pool)));
        }
        let _ = self.resumes_queued.get_or_create(&one("pool", pool.as_str()));
        let _ = self.resume_wait_seconds.get_or_create(&one("pool", pool.as_str()));
        for mode in PreemptionMode::ALL.iter().filter(|mode| **mode != PreemptionMode::Off) {
            let labels = [("pool", name()), ("mode", mode.as_str().to_owned())];
            let _ = self.preemptions.get_or_create(&labels);
        }
        let actions = Action::ALL.iter().map(|action| action.as_str());
        for action in actions.chain(["preempted"]) {
            let labels = [("action", action.to_owned()), ("pool", name())];
            let _ = self.lifecycle_actions.get_or_create(&labels);
        }
    }

    /// The text of one scrape: `calls_waiting` calls wait for a sandbox. Without gauges (the state
    /// is not loaded) the rest are counters alone.
    pub(crate) fn encode(&self, calls_waiting: usize, gauges: Option<&Gauges>) -> String {
        self.calls_waiting.set(i64::try_from(calls_waiting).unwrap_or(i64::MAX));
        for pool in gauges.iter().flat_map(|gauges| &gauges.pools) {
            self.begin(&pool.row.name);
        }
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode_registry(&mut text, &self.registry);
        if let Some(gauges) = gauges {
            let _ = encode_registry(&mut text, &gauges::registry(gauges));
        }
        let _ = encode_eof(&mut text);
        text
    }
}

fn one(name: &'static str, value: &str) -> Labels<1> {
    [(name, value.to_owned())]
}

fn refusal_labels(code: RefusalCode, pool: Option<&PoolName>) -> Labels<2> {
    [("code", code.to_string()), ("pool", pool.map(ToString::to_string).unwrap_or_default())]
}

fn counters<const N: usize>(registry: &mut Registry, name: &str, help: &str) -> Counters<N> {
    let family = Counters::<N>::default();
    registry.register(name, help, family.clone());
    family
}

fn timing(registry: &mut Registry, name: &str, help: &str, histogram: Histogram) -> Histogram {
    registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
    histogram
}
