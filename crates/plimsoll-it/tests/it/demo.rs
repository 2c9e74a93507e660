//! `plimsoll demo` shows what it claims, within its time, and leaves nothing behind.

use std::time::Instant;

use crate::rig::{Folder, processes_of};

#[test]
fn the_demo_shows_what_it_claims() {
    let folder = Folder::new();
    let begun = Instant::now();
    let mut command = folder.command(&["demo", "--json"]);
    let output = command.env("TMPDIR", folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(begun.elapsed().as_secs() < 120, "{:?}", begun.elapsed());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |path: &str| report.pointer(path).and_then(serde_json::Value::as_u64).unwrap();
    assert!(number("/working_set/admitted") >= 3 * number("/committed/admitted"), "{report}");
    for regime in ["committed", "working_set"] {
        let budget = number(&format!("/{regime}/budget_mib"));
        assert!(number(&format!("/{regime}/resident_mib_max")) <= budget, "{report}");
        assert!(number(&format!("/{regime}/charged_mib_max")) <= budget, "{report}");
    }
    assert!(number("/committed/refused") > 0, "{report}");
    assert!(number("/working_set/configured_mib") > number("/working_set/budget_mib"), "{report}");
    assert_eq!(number("/burst/admitted"), number("/burst/room_for"), "{report}");
    assert_eq!(number("/burst/admitted") + number("/burst/refused"), 20, "{report}");
    let (freed, admitted) =
        (number("/wait/freed_after_millis"), number("/wait/admitted_after_millis"));
    assert!(freed <= admitted && admitted < freed + 10_000, "{report}");
    assert!(processes_of(folder.path()).is_empty());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
