//! Who gets in: limits under concurrency, refusals and waiting.

use std::time::{Duration, Instant};

use plimsoll_api::{CreateSandbox, ListSandboxes, Sandbox};
use plimsoll_client::{Client, CreateOptions, Error};
use plimsoll_types::{OnFull, RefusalCode, SandboxId, SandboxStatus};
use tokio::task::JoinSet;

use crate::rig::{Folder, Server, wait_for};

/// A host of guests that exist only as numbers, so that hundreds start at once.
fn up(folder: &Folder, words: &[&str]) -> Server {
    let fixed = [
        "--driver=simulated",
        "--heartbeat-millis=300",
        "--sample-millis=100",
        "--starts-limit=unbounded",
    ];
    let has_start = words.iter().any(|word| word.starts_with("--simulated-start-millis"));
    let quick: &[&str] = if has_start { &[] } else { &["--simulated-start-millis=1"] };
    folder.up(&fixed.iter().chain(quick).chain(words).copied().collect::<Vec<_>>())
}

fn small() -> CreateSandbox {
    let mut body = CreateSandbox::new("sleeper".parse().unwrap());
    body.memory_mib = Some(16);
    body
}

async fn create(client: &Client, body: &CreateSandbox) -> Result<Sandbox, Error> {
    client.create_sandbox(body, &CreateOptions::default()).await
}

/// Fires creates at once; gives those admitted and the codes of those refused.
async fn burst(client: &Client, count: usize) -> (Vec<SandboxId>, Vec<RefusalCode>) {
    let mut all = JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        all.spawn(async move { create(&client, &small()).await });
    }
    let (mut admitted, mut refused) = (Vec::new(), Vec::new());
    while let Some(done) = all.join_next().await {
        match done.unwrap() {
            Ok(sandbox) => admitted.push(sandbox.id),
            Err(error) => refused.push(error.code().unwrap_or_else(|| panic!("{error}"))),
        }
    }
    (admitted, refused)
}

fn limit(folder: &Folder, sandboxes: u64) {
    let field = format!("overrides.concurrency.sandboxes.limit={sandboxes}");
    folder.run(&["tenants", "set", "default", &field]).ok();
}

/// Public failures R1 and S1.
#[tokio::test]
async fn one_place_is_given_once_however_many_ask() {
    let folder = Folder::new();
    let _server = up(&folder, &[]);
    limit(&folder, 100);
    let client = folder.tenant();
    let (admitted, refused) = burst(&client, 99).await;
    assert_eq!((admitted.len(), refused.len()), (99, 0));
    for round in 0..50 {
        let (admitted, refused) = burst(&client, 10).await;
        assert_eq!(admitted.len(), 1, "round {round}");
        assert_eq!(refused, vec![RefusalCode::QuotaExceeded; 9], "round {round}");
        // The answer to the delete comes after the place is free.
        let record = client.delete_sandbox(admitted[0]).await.unwrap();
        if record.status.is_terminal() {
            continue;
        }
        wait_for("the place", || folder.status(&admitted[0].to_string()) == "terminated");
    }
    let quota = client.quota().await.unwrap();
    assert_eq!(quota.concurrency.sandboxes.used, 99);
}

/// Public failure R2.
#[tokio::test]
async fn a_burst_stops_at_the_cap_also_right_after_a_restart() {
    let folder = Folder::new();
    let server = up(&folder, &[]);
    limit(&folder, 5);
    let (admitted, refused) = burst(&folder.tenant(), 50).await;
    assert_eq!((admitted.len(), refused.len()), (5, 45));
    server.kill();
    let _server = up(&folder, &[]);
    let (admitted, refused) = burst(&folder.tenant(), 50).await;
    assert_eq!((admitted.len(), refused.len()), (0, 50));
    assert!(refused.iter().all(|code| *code == RefusalCode::QuotaExceeded), "{refused:?}");
}

/// Public failures W1, W3, W4, W5 and W6: each no is typed, immediate and explained.
#[tokio::test]
async fn each_no_is_typed_immediate_and_explained() {
    let folder = Folder::new();
    let _server = up(&folder, &["--memory-mib=1024", "--headroom-mib=0"]);
    let client = folder.tenant();
    let begun = Instant::now();
    let ask = async |change: &dyn Fn(&mut CreateSandbox)| {
        let mut body = small();
        change(&mut body);
        create(&client, &body).await.unwrap_err()
    };

    let error = ask(&|body| body.memory_mib = Some(2048)).await;
    assert_eq!((error.status(), error.code()), (Some(422), Some(RefusalCode::NeverFits)));
    assert_eq!(error.problem().unwrap().largest_host_memory_mib, Some(1024));
    let error = ask(&|body| body.template = "nope".parse().unwrap()).await;
    assert_eq!((error.status(), error.code()), (Some(422), Some(RefusalCode::UnknownTemplate)));
    assert!(error.problem().unwrap().known.contains(&"sleeper".to_owned()));
    let error = ask(&|body| body.pool = Some("nope".parse().unwrap())).await;
    assert_eq!((error.status(), error.code()), (Some(422), Some(RefusalCode::UnknownPool)));
    assert_eq!(error.problem().unwrap().known, ["local"]);

    // Stateful ones are charged in full: two of 512 MiB fill the host.
    for _ in 0..2 {
        let mut body = small();
        (body.memory_mib, body.stateful) = (Some(512), Some(true));
        create(&client, &body).await.unwrap();
    }
    let error = ask(&|body| (body.memory_mib, body.stateful) = (Some(512), Some(true))).await;
    assert_eq!((error.status(), error.code()), (Some(503), Some(RefusalCode::NoCapacity)));
    assert!(error.retry_after().is_some_and(|wait| wait >= Duration::from_secs(1)));
    let counts = error.problem().unwrap().counts.expect("counts per filter");
    assert_eq!((counts.hosts, counts.candidates), (1, 0));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());

    let decision = error.decision_id().expect("a decision").to_string();
    folder.run(&["decisions", &decision]).ok().says("no_capacity").says("0 of 1 fit");
    folder
        .run(&["explain", "--template=sleeper", "--memory-mib=512", "--stateful"])
        .ok()
        .says("refuse (no_capacity)")
        .says("h1");
    let words = ["create", "--template=sleeper", "--memory-mib=512", "--stateful", "--deadline=0"];
    folder.run(&words).exits(75).says("no_capacity").says("hint: ");
    let words = ["create", "--template=sleeper", "--memory-mib=2048"];
    folder.run(&words).exits(1).says("never_fits").says("1024");
}

/// Public failure B5: refused for now is not refused for good.
#[tokio::test]
async fn who_waits_gets_in_and_is_never_called_failed() {
    let folder = Folder::new();
    let _server = up(&folder, &[]);
    folder.run(&["pools", "set", "local", "limit=2"]).ok();
    let client = folder.tenant();
    let (first, refused) = burst(&client, 2).await;
    assert!(refused.is_empty());

    let mut body = small();
    body.on_full = OnFull::Queue;
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let queued = create(&client, &body).await.unwrap();
        assert_eq!(queued.status, SandboxStatus::Queued);
        waiting.push(queued.id);
    }
    // One waits in its own client, which says what for. It is refused before anything is freed:
    // an estimate from the first releases alone may lie beyond its deadline.
    let said = folder.path().join("said");
    let mut waiter = folder
        .command(&["create", "--template=sleeper", "--memory-mib=16", "--deadline=60"])
        .stdout(std::process::Stdio::null())
        .stderr(std::fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let said = || std::fs::read_to_string(&said).unwrap();
    wait_for("its first refusal", || said().contains("waiting") && said().contains("no_capacity"));
    for id in first {
        client.delete_sandbox(id).await.unwrap();
    }
    for id in &waiting {
        let id = id.to_string();
        wait_for("the queued one", || {
            let status = folder.status(&id);
            assert_ne!(status, "failed");
            status == "running"
        });
    }
    client.delete_sandbox(waiting[0]).await.unwrap();
    assert!(waiter.wait().unwrap().success(), "{}", said());
}

/// Public failure C2: a caller that goes away leaves no guest that nobody owns.
#[tokio::test]
async fn a_caller_that_leaves_leaves_nothing_behind() {
    let folder = Folder::new();
    let _server = up(&folder, &[]);
    folder.run(&["pools", "set", "local", "limit=1"]).ok();
    let client = folder.tenant();
    let holder = create(&client, &small()).await.unwrap();
    let mut body = small();
    body.wait_seconds = 60;
    let task = tokio::spawn({
        let (client, body) = (client.clone(), body.clone());
        async move { create(&client, &body).await }
    });
    let queued = || async {
        let query = ListSandboxes { statuses: vec![SandboxStatus::Queued], ..Default::default() };
        client.sandboxes(&query).await.unwrap().items
    };
    let until = Instant::now() + crate::rig::PATIENCE;
    while queued().await.is_empty() {
        assert!(Instant::now() < until, "it does not wait in the queue");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    task.abort();
    while !queued().await.is_empty() {
        assert!(Instant::now() < until, "its place is kept");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    client.delete_sandbox(holder.id).await.unwrap();
    // The slot is free for the next, and nobody took it meanwhile.
    let next = loop {
        match create(&client, &small()).await {
            Ok(sandbox) => break sandbox,
            Err(error) => assert!(error.is_transient() && Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let query = ListSandboxes { statuses: vec![SandboxStatus::Running], ..Default::default() };
    let running: Vec<_> =
        client.sandboxes(&query).await.unwrap().items.into_iter().map(|one| one.id).collect();
    assert_eq!(running, [next.id]);
}

/// DESIGN 6.3: one key, one guest.
#[tokio::test]
async fn one_key_makes_one_guest() {
    let folder = Folder::new();
    let _server = up(&folder, &[]);
    let client = folder.tenant();
    let options = CreateOptions { idempotency_key: Some("once".into()), run_async: false };
    let mut all = JoinSet::new();
    for _ in 0..10 {
        let (client, options) = (client.clone(), options.clone());
        all.spawn(async move { client.create_sandbox(&small(), &options).await.unwrap().id });
    }
    let mut ids = all.join_all().await;
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 1);
    let mut other = small();
    other.memory_mib = Some(32);
    let error = client.create_sandbox(&other, &options).await.unwrap_err();
    assert_eq!((error.status(), error.code()), (Some(409), Some(RefusalCode::Conflict)));
}
