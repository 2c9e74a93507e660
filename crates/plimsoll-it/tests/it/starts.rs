//! Starts: bounded per host, failing, and what they leave behind.

use std::time::Duration;

use plimsoll_api::CreateSandbox;
use plimsoll_client::CreateOptions;
use plimsoll_types::RefusalCode;
use tokio::task::JoinSet;

use crate::rig::{Folder, metric, wait_for};

fn small() -> CreateSandbox {
    let mut body = CreateSandbox::new("sleeper".parse().unwrap());
    body.memory_mib = Some(16);
    body
}

/// Public failures B4 and W2: a burst does not start all at once, and the refusal says which of
/// two limits it met.
#[tokio::test]
async fn starts_are_bounded_and_their_refusal_is_its_own() {
    let folder = Folder::new();
    let _server = folder.up(&[
        "--driver=simulated",
        "--starts-limit=2",
        "--simulated-start-millis=1500",
        "--heartbeat-millis=300",
    ]);
    let client = folder.tenant();
    let mut all = JoinSet::new();
    for _ in 0..10 {
        let client = client.clone();
        all.spawn(async move { client.create_sandbox(&small(), &CreateOptions::default()).await });
    }
    let (mut started, mut refused) = (0, Vec::new());
    for done in all.join_all().await {
        match done {
            Ok(_) => started += 1,
            Err(error) => refused.push(error),
        }
    }
    assert!(started >= 2, "{started}");
    assert!(!refused.is_empty(), "ten starts at once on a host that takes two");
    for error in &refused {
        let problem = error.problem().unwrap();
        assert_eq!(error.code(), Some(RefusalCode::HostStartsSaturated), "{error}");
        let counts = problem.counts.expect("counts per filter");
        assert_eq!((counts.hosts, counts.filtered.starts_saturated), (1, 1), "{problem:?}");
        assert_eq!((problem.starts_in_flight, problem.starts_limit), (Some(2), Some(2)));
        assert!(problem.retry_after_millis.is_some_and(|wait| wait <= 2_000), "{problem:?}");
    }
    // With patience, all get in.
    let mut waiting: Vec<_> = (0..4)
        .map(|_| {
            folder.command(&["create", "--template=sleeper", "--memory-mib=16"]).spawn().unwrap()
        })
        .collect();
    for child in &mut waiting {
        assert!(child.wait().unwrap().success());
    }
}

/// Public failures S2, S4, S5 and S6: after many starts, some of which failed, nothing is reserved.
#[tokio::test]
async fn nothing_stays_reserved_after_starts_that_failed() {
    let folder = Folder::new();
    let _server = folder.up(&[
        "--driver=simulated",
        "--starts-limit=unbounded",
        "--simulated-start-millis=1",
        "--simulated-start-failures-bp=1500",
        "--heartbeat-millis=300",
        "--sample-millis=100",
    ]);
    let cycles: usize =
        std::env::var("PLIMSOLL_IT_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    let client = folder.tenant();
    let (mut ran, mut failed) = (0, 0);
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        tasks.spawn(async move {
            let (mut ran, mut failed) = (0, 0);
            for _ in 0..cycles / 8 {
                match client.create_sandbox(&small(), &CreateOptions::default()).await {
                    Ok(sandbox) => {
                        client.delete_sandbox(sandbox.id).await.unwrap();
                        ran += 1;
                    }
                    Err(error) => {
                        // A host that fails is set aside for a while: that, too, is a no for now.
                        assert!(error.is_transient(), "{error}");
                        failed += 1;
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
            (ran, failed)
        });
    }
    for (one_ran, one_failed) in tasks.join_all().await {
        ran += one_ran;
        failed += one_failed;
    }
    assert!(ran > 0 && failed > 0, "{ran} ran, {failed} failed");
    let operator = folder.operator();
    wait_for("an idle host", || {
        let host = folder.run(&["hosts", "show", "h1", "--json"]).ok().json();
        host["guests"] == 0 && host["charged_mib"] == 0 && host["pending_mib"] == 0
    });
    let page = operator.metrics().await.unwrap();
    assert_eq!(metric(&page, "plimsoll_reserved_mib{host=\"h1\"}"), Some(0.0), "{page}");
    let quota = client.quota().await.unwrap();
    assert_eq!(quota.concurrency.sandboxes.used, 0);
    let status = operator.status().await.unwrap();
    assert!(status.counts.invariant_violations.is_empty(), "{status:?}");
}

/// One tenant's commands that do not exist are its own: refused as bad input, with nothing kept and
/// nothing held against a host that everybody shares.
#[tokio::test]
async fn bad_commands_of_one_tenant_close_no_host() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=process", "--heartbeat-millis=300"]);
    let client = folder.tenant();
    let create = |command: &[&str]| {
        let mut body = CreateSandbox::new("process".parse().unwrap());
        body.memory_mib = Some(16);
        body.command = command.iter().map(|word| (*word).to_owned()).collect();
        body
    };
    for command in ["/no/such/program", "no-such-program", "/etc"].iter().cycle().take(9) {
        let refused = client.create_sandbox(&create(&[command]), &CreateOptions::default()).await;
        let error = refused.unwrap_err();
        assert_eq!(error.code(), Some(RefusalCode::InvalidRequest), "{error}");
        assert!(error.to_string().contains(command), "{error}");
    }
    let good = client.create_sandbox(&create(&["sleep", "60"]), &CreateOptions::default()).await;
    client.delete_sandbox(good.unwrap().id).await.unwrap();
    assert!(folder.run(&["ls", "--json"]).ok().json()["items"].as_array().unwrap().len() <= 1);
    let host = folder.run(&["hosts", "show", "h1", "--json"]).ok().json();
    assert_eq!(host["failures_in_a_row"], 0, "{host}");
}
