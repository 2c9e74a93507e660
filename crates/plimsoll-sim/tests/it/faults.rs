//! Seeds under faults.

use plimsoll_sim::faults::{Options, run};

/// Seeds of one test; `PLIMSOLL_SIM_SEEDS` and `PLIMSOLL_SIM_FROM` choose others.
const SEEDS: u64 = 30;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn every_seed_holds_and_they_reach_what_they_check() {
    let from = setting("PLIMSOLL_SIM_FROM", 0);
    let (mut came, mut given_up) = (0, 0);
    for seed in from..from + setting("PLIMSOLL_SIM_SEEDS", SEEDS) {
        let report = run(seed, &Options::default());
        assert!(report.failure.is_none(), "seed {seed}: {:#?}", report.failure);
        came += report.stats.deliveries;
        given_up += report.stats.given_up;
    }
    println!("{came} deliveries, {given_up} events given up on");
    assert!(came > 0 && given_up > 0);
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
