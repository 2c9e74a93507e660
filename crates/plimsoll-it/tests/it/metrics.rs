//! The metrics that dashboards and alarms hold on to.

use crate::rig::{Folder, wait_for};

const NAMES: &[&str] = &[
    "plimsoll_admissions_total",
    "plimsoll_refusals_total",
    "plimsoll_decision_seconds",
    "plimsoll_resident_committed_ratio",
    "plimsoll_reserved_mib",
    "plimsoll_reservations",
    "plimsoll_first_refusal_to_success_seconds",
    "plimsoll_retry_after_error_seconds",
    "plimsoll_pool_slots",
    "plimsoll_pool_overcommitted",
    "plimsoll_resumes_queued_total",
    "plimsoll_resume_wait_seconds",
    "plimsoll_preemptions_total",
    "plimsoll_host_heartbeat_age_seconds",
    "plimsoll_host_admittable_mib",
    "plimsoll_host_pressure",
    "plimsoll_policy_mode",
    "plimsoll_policy_age_seconds",
    "plimsoll_policy_rejected_total",
    "plimsoll_store_commit_seconds",
    "plimsoll_store_batch_size",
    "plimsoll_webhook_deliveries_total",
    "plimsoll_invariant_violations_total",
];

/// Series by pool appear with their first sample: each is given one. A lifecycle limit is at least
/// a minute, so that its counter is not waited for.
#[tokio::test]
async fn every_metric_of_the_contract_is_there() {
    let folder = Folder::new();
    let words = [
        "--driver=simulated,process",
        "--simulated-start-millis=1",
        "--heartbeat-millis=300",
        "--sample-millis=100",
    ];
    let _server = folder.up(&words);
    let fields = [
        "pools",
        "set",
        "local",
        "limit=1",
        "preemption.mode=lru",
        "preemption.min_run_seconds=1",
        "preemption_protect_seconds=1",
        "preemption_pair_seconds=1",
    ];
    folder.run(&fields).ok();
    let first = folder.create(&["--template=sleeper", "--memory-mib=64"]);
    folder.create(&["--template=sleeper", "--memory-mib=64", "--on-full=queue"]);
    wait_for("a preemption", || folder.status(&first) == "paused");
    folder.run(&["resume", &first, "--deadline=0"]);
    wait_for("its way back", || folder.status(&first) == "running");
    folder.run(&["create", "--template=sleeper", "--memory-mib=9000000"]).exits(1);
    let envelope = r#"{"payloadType": "application/vnd.plimsoll.policy+json", "payload": "e30=",
        "signatures": [{"keyid": "k", "sig": "AAAA"}]}"#;
    std::fs::write(folder.path().join("policy.json"), envelope).unwrap();
    let rejected = folder.run(&["policy", "put", "policy.json"]);
    assert_ne!(rejected.code, 0, "{rejected:?}");
    wait_for("a measurement", || {
        folder.run(&["show", &first, "--json"]).ok().json()["measured"] == true
    });
    let page = folder.operator().metrics().await.unwrap();
    let missing: Vec<_> = NAMES
        .iter()
        .filter(|name| {
            let plain = name.strip_suffix("_total").unwrap_or(name);
            !page.contains(&format!("# TYPE {plain} "))
                && !page.contains(&format!("# TYPE {name} "))
        })
        .collect();
    assert!(missing.is_empty(), "{missing:?} in\n{page}");
    assert!(page.contains("plimsoll_admissions_total{"), "{page}");
    assert!(page.contains("code=\"never_fits\""), "{page}");
}
