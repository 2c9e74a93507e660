//! The capacity model: that it repeats itself, that its conclusions hold, and that it stands
//! beside the table that it was modelled on.

mod document;
mod published;

use std::sync::OnceLock;

use plimsoll_sim::capacity::{
    COLUMNS, Figures, Params, Row, Seeds, Strategy, Study, csv, run, svg,
};

use published::USERS;

/// The whole table of five seeds, which several tests look at.
fn table() -> &'static [Row] {
    static TABLE: OnceLock<Vec<Row>> = OnceLock::new();
    TABLE.get_or_init(|| Study::default().rows(|| {}).unwrap())
}

fn figures(users: u64, strategy: Strategy) -> Figures {
    let is = |row: &&Row| row.users == users && row.strategy == strategy;
    table().iter().find(is).unwrap().mean
}

#[test]
fn the_same_arguments_and_seed_give_the_same_bytes() {
    let bytes = |first| {
        let study = Study {
            users: vec![6, 12],
            seeds: Seeds { first, number: 2 },
            params: Params { days: 2, ..Params::default() },
            ..Study::default()
        };
        let rows = study.rows(|| {}).unwrap();
        let json = serde_json::to_string(&rows).unwrap();
        [json, csv(&rows), svg(&rows, &study.params)]
    };
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
}

#[test]
fn rows_have_their_keys_and_nothing_else() {
    let seeds = Seeds { first: 1, number: 1 };
    let rows = Study { users: vec![6], seeds, ..Study::default() }.rows(|| {}).unwrap();
    let json = serde_json::to_value(&rows).unwrap();
    let list = json.as_array().unwrap();
    assert_eq!(list.len(), 4);
    for row in list {
        let keys: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        let mut wanted = COLUMNS;
        wanted.sort_unstable();
        assert_eq!(keys, wanted);
        assert!(row["strategy"].is_string() && row["users"].is_u64());
        assert!(COLUMNS[2..].iter().all(|column| row[column].is_f64()), "{row}");
    }
    let text = csv(&rows);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], COLUMNS.join(","));
    assert_eq!(lines.len(), 5);
    for (line, row) in lines[1..].iter().zip(list) {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells.len(), COLUMNS.len());
        assert_eq!(cells[0], row["users"].to_string());
        assert_eq!(cells[1], row["strategy"].as_str().unwrap());
        for (cell, column) in cells.iter().zip(COLUMNS).skip(2) {
            assert_eq!(cell.parse::<f64>().unwrap(), row[column].as_f64().unwrap(), "{column}");
        }
    }
}

#[test]
fn releasing_paused_slots_multiplies_what_a_pool_serves() {
    for users in USERS {
        let (hold, release) = (figures(users, Strategy::Hold), figures(users, Strategy::Release));
        assert!(release.on_pool_percent > hold.on_pool_percent, "{users}");
        assert!(release.external_hours < hold.external_hours, "{users}");
        assert!(release.utilisation_percent > hold.utilisation_percent, "{users}");
        // Still low: people work in bursts.
        assert!(release.utilisation_percent < 25.0, "{users}");
    }
    let (hold, release) = (figures(12, Strategy::Hold), figures(12, Strategy::Release));
    assert!(release.on_pool_percent > 2.0 * hold.on_pool_percent);
    assert!(release.external_hours < hold.external_hours / 2.0);
}

#[test]
fn the_price_of_releasing_is_a_queue_and_idle_preemption_shortens_it() {
    let mut last = 0.0;
    for users in [12, 16, 24] {
        let p95 = |strategy| figures(users, strategy).wait_p95_seconds;
        let [hold, release, idle, lru] = Strategy::ALL.map(p95);
        assert!(hold < 30.0, "holding hardly ever queues: {hold}");
        assert!(release > 10.0 * hold, "{users}: {release} {hold}");
        assert!(release > last, "more users wait longer: {release} {last}");
        last = release;
        let saved = 100.0 * (release - idle) / release;
        assert!((20.0..55.0).contains(&saved), "{users}: {saved} % shorter");
        assert!(lru > idle, "least recently used gains less: {users}: {lru} {idle}");
    }
}

#[test]
fn only_least_recently_used_interrupts_and_it_preempts_more() {
    let mut last = 0.0;
    for users in USERS {
        let of = |strategy| figures(users, strategy);
        for strategy in [Strategy::Hold, Strategy::Release] {
            assert_eq!(of(strategy).preemptions_per_day, 0.0, "{users} {strategy}");
        }
        for strategy in [Strategy::Hold, Strategy::Release, Strategy::PreemptIdle] {
            assert_eq!(of(strategy).interrupted_per_day, 0.0, "{users} {strategy}");
        }
        let (idle, lru) = (of(Strategy::PreemptIdle), of(Strategy::PreemptLru));
        assert!(lru.preemptions_per_day >= idle.preemptions_per_day, "{users}");
        assert!(lru.interrupted_per_day >= last, "{users}: {} {last}", lru.interrupted_per_day);
        last = lru.interrupted_per_day;
    }
    assert!(last > 8.0, "{last} a day at 24 users");
}

#[test]
fn creates_are_served_alike_by_every_strategy_that_releases() {
    for users in USERS {
        let on_pool = |strategy| figures(users, strategy).on_pool_percent;
        let release = on_pool(Strategy::Release);
        for strategy in [Strategy::PreemptIdle, Strategy::PreemptLru] {
            assert!((on_pool(strategy) - release).abs() < 5.0, "{users} {strategy}");
        }
    }
}

#[test]
fn a_slot_for_each_user_leaves_nothing_outside_and_nobody_preempted() {
    let params = Params { slots: 8, ..Params::default() };
    for strategy in Strategy::ALL {
        let run = run(8, strategy, &params, 1).unwrap();
        assert_eq!((run.users, run.on_pool), (8, 8), "{strategy}");
        assert_eq!((run.external.0, run.preemptions, run.interrupted), (0, 0, 0), "{strategy}");
        // A session waits for the resume and, where it met the pause of its own computer, for that.
        assert!(run.waits.iter().all(|wait| wait.0 <= 182_000), "{:?}", run.waits.last());
    }
}

#[test]
fn a_computer_that_was_brought_in_is_kept_for_as_long_as_it_is_protected() {
    let preemptions = |protect_seconds| {
        let params = Params { slots: 2, protect_seconds, ..Params::default() };
        run(12, Strategy::PreemptLru, &params, 1).unwrap().preemptions
    };
    let (none, hour) = (preemptions(0), preemptions(3_600));
    assert!(hour < none, "{hour} with protection, {none} without");
}

#[test]
fn more_users_leave_the_first_ones_their_sessions() {
    // With a slot for each, every user is alone: waits of the first ones are among those of all.
    let params = Params { slots: 12, ..Params::default() };
    let few = run(6, Strategy::Release, &params, 1).unwrap();
    let many = run(12, Strategy::Release, &params, 1).unwrap();
    let mut rest = many.waits.iter();
    assert!(few.waits.iter().all(|wait| rest.any(|other| other == wait)));
    assert!(many.waits.len() > few.waits.len());
}
