//! The capacity model as a command.

use crate::rig::Folder;

/// The columns that scripts hold on to.
const COLUMNS: [&str; 9] = [
    "users",
    "strategy",
    "on_pool_percent",
    "external_hours",
    "utilisation_percent",
    "wait_p50_seconds",
    "wait_p95_seconds",
    "preemptions_per_day",
    "interrupted_per_day",
];

fn words<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["sim", "capacity", "--users=6,8", "--days=1", "--seeds=2"];
    words.extend(more);
    words
}

#[test]
fn the_table_comes_as_text_json_and_csv_the_same_every_time() {
    let folder = Folder::new();
    let text = folder.run(&words(&[])).ok().stdout;
    assert_eq!(text.lines().count(), 9);
    assert!(text.starts_with("USERS  STRATEGY"), "{text}");
    let json = folder.run(&words(&["--json"])).ok().stdout;
    assert_eq!(json, folder.run(&words(&["--json"])).ok().stdout);
    assert_ne!(json, folder.run(&words(&["--json", "--first-seed=9"])).ok().stdout);
    let rows: Vec<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_str(&json).unwrap();
    assert_eq!(rows.len(), 8);
    let mut keys = COLUMNS;
    keys.sort_unstable();
    for row in &rows {
        assert!(row.keys().eq(&keys), "{row:?}");
    }
    let csv = folder.run(&words(&["--csv"])).ok().stdout;
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], COLUMNS.join(","));
    assert_eq!(lines.len(), 9);
    assert!(lines[1].starts_with("6,hold,"), "{}", lines[1]);
    folder.run(&words(&["--csv", "--json"])).exits(2).says("cannot be used with");
}

#[test]
fn the_plot_is_written_beside_the_table() {
    let folder = Folder::new();
    let with = folder.run(&words(&["--plot=out.svg"])).ok();
    let picture = std::fs::read_to_string(folder.path().join("out.svg")).unwrap();
    assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
    assert_eq!(with.stdout, folder.run(&words(&[])).ok().stdout);
    folder.run(&words(&["--plot=no/such/out.svg"])).exits(1).says("no/such/out.svg");
}

#[test]
fn parameters_out_of_bounds_are_named() {
    let folder = Folder::new();
    for (flag, says) in [
        ("--slots=0", "--slots is 0; it must be 1 to 10000"),
        ("--users=0", "--users is 0; it must be 1 to 10000"),
        ("--seeds=0", "--seeds is 0; it must be 1 to 10000"),
        ("--days=367", "--days is 367; it must be 1 to 366"),
        ("--session-sigma=4", "--session-sigma is 4; it must be 0 to 3"),
        ("--call-seconds=300", "--call-seconds is 300; it must be 1 to 299"),
        ("--strategies=lru", "no strategy \"lru\"; there are: hold, release"),
    ] {
        folder.run(&["sim", "capacity", flag]).exits(2).says(says);
    }
    folder.run(&["sim", "size", "--users=6"]).exits(2).says("--p95");
    folder
        .run(&["sim", "size", "--users=6", "--p95=90000"])
        .exits(2)
        .says("--p95 is 90000; it must be 0 to 86400");
}

#[test]
fn size_says_how_many_slots_are_enough_and_what_one_fewer_gives() {
    let folder = Folder::new();
    let size = |more: &[&str]| {
        let mut words = vec!["sim", "size", "--users=8", "--days=2", "--seeds=2"];
        words.extend(more);
        folder.run(&words)
    };
    let asked = ["--p95=60", "--on-pool-percent=100"];
    let text = size(&asked).ok().stdout;
    assert_eq!(text.lines().count(), 3, "{text}");
    let json = size(&[&asked[..], &["--json"]].concat()).ok().stdout;
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    let slots = answer["slots"].as_u64().unwrap();
    assert!((2..=8).contains(&slots), "{answer}");
    let meets = |row: &serde_json::Value| {
        row["wait_p95_seconds"].as_f64().unwrap() <= 60.0
            && row["on_pool_percent"].as_f64().unwrap() >= 100.0
    };
    assert!(meets(&answer["row"]) && !meets(&answer["fewer"]), "{answer}");
    assert_eq!(answer["strategy"], "preempt-idle");
    let checked: Vec<u64> = serde_json::from_value(answer["checked_slots"].clone()).unwrap();
    assert!((slots - 1..=8).all(|slots| checked.contains(&slots)), "{checked:?}");
    size(&["--p95=0"]).exits(1).says("with a slot for each of 8 users").says("hint: ");
}
