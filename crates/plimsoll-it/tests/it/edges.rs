//! Which crate may depend on which.

use std::collections::BTreeMap;
use std::process::Command;

/// The edges that the architecture allows. Everything else is a change of the architecture.
const ALLOWED: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("policy", &["types"]),
    ("engine", &["types", "policy"]),
    ("host", &["types", "policy"]),
    ("api", &["types"]),
    ("store", &["types", "engine"]),
    ("client", &["types", "api"]),
    ("cell", &["types", "policy", "engine", "api", "store", "client"]),
    ("agent", &["types", "policy", "host", "api", "client"]),
    ("sim", &["types", "policy", "engine", "host"]),
    ("bench", &["types", "policy", "engine", "api", "store", "client"]),
    ("it", &["types", "api", "client"]),
];

#[test]
fn crates_depend_on_each_other_as_the_architecture_says() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let words = ["metadata", "--no-deps", "--offline", "--format-version=1", "--manifest-path"];
    let output = Command::new(cargo).args(words).arg(manifest).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let allowed: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    let mut seen = 0;
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        // The binary wires everything together.
        let Some(name) = name.strip_prefix("plimsoll-") else { continue };
        let Some(allowed) = allowed.get(name) else { panic!("{name} has no row") };
        seen += 1;
        for dependency in package["dependencies"].as_array().unwrap() {
            // Tests may use what the crate itself may not.
            if !dependency["kind"].is_null() {
                continue;
            }
            if let Some(on) = dependency["name"].as_str().unwrap().strip_prefix("plimsoll-") {
                assert!(allowed.contains(&on), "{name} depends on {on}");
            }
        }
    }
    assert_eq!(seen, ALLOWED.len(), "a crate of the table is gone");
}

/// The pure crates have neither clock nor socket nor randomness to reach for.
#[test]
fn the_core_depends_on_nothing_that_does_io() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    for name in ["types", "policy", "engine", "host"] {
        let path = format!("{root}/plimsoll-{name}/Cargo.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let dependencies = text.split("[dependencies]").nth(1).unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap();
        for line in dependencies.lines().filter(|line| line.contains('=')) {
            let dependency = line.split(['.', ' ', '=']).next().unwrap();
            // `jiff` without its clock: the calendar arithmetic of periods.
            let pure = [
                "plimsoll-types",
                "plimsoll-policy",
                "serde",
                "thiserror",
                "smallvec",
                "smol_str",
                "foldhash",
                "hashbrown",
                "serde_json",
                "jiff",
            ];
            assert!(pure.contains(&dependency), "{name} depends on {dependency}");
        }
    }
}
