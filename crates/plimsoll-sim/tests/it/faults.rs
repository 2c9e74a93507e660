//! Seeds under faults.

use std::collections::BTreeMap;

use plimsoll_sim::faults::{Failure, Options, Report, run};

/// Seeds of one test; `PLIMSOLL_SIM_SEEDS` and `PLIMSOLL_SIM_FROM` choose others.
const SEEDS: u64 = 30;

/// More failures than this tell nothing new.
const FAILURES_MAX: usize = 5;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn every_seed_holds_and_they_reach_what_they_check() {
    let from = setting("PLIMSOLL_SIM_FROM", 0);
    let (mut came, mut given_up, mut deleted, mut failed) = (0, 0, 0, Vec::new());
    let mut told: BTreeMap<String, u64> = BTreeMap::new();
    for seed in from..from + setting("PLIMSOLL_SIM_SEEDS", SEEDS) {
        let Report { failure, stats, .. } = run(seed, &Options::default());
        failed.extend(failure.map(|failure| (seed, failure)));
        if failed.len() >= FAILURES_MAX {
            break;
        }
        came += stats.deliveries;
        given_up += stats.given_up;
        deleted += stats.deleted_for_budget;
        for (kind, times) in stats.ladder {
            *told.entry(kind).or_default() += times;
        }
    }
    for (seed, Failure { invariant, detail, step, .. }) in &failed {
        println!("seed {seed}, step {step}: {invariant}: {detail}");
    }
    println!("{came} deliveries, {given_up} given up on, {deleted} deleted; told: {told:?}");
    assert!(failed.is_empty(), "{:#?}", failed.first());
    assert!(came > 0 && given_up > 0 && deleted > 0);
    for kind in ["warning", "exhausted", "suspended", "deletion_scheduled", "resumed", "overage"] {
        assert!(told.contains_key(&format!("quota.{kind}")), "nobody was told {kind}");
    }
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    let options = Options { minutes: 3, ..Options::default() };
    for seed in 1_000..1_005 {
        let json = |_| serde_json::to_string(&run(seed, &options)).expect("a report is JSON");
        let [first, second] = [(), ()].map(json);
        assert_eq!(first, second);
    }
}
