//! A store that fails, and what the cell says meanwhile.

use futures_util::future::join_all;
use plimsoll_store::{Fault, MemoryStore, Progress, Store as _};
use plimsoll_types::EventId;
use reqwest::Method;
use serde_json::json;

use super::{Tested, until};

/// DESIGN 6.1: answered "unknown", rebuilt, and the key tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_commit_is_answered_and_survived() {
    for fault in [Fault::Fail, Fault::FailAfterApply, Fault::Full, Fault::Busy] {
        let store = MemoryStore::new();
        let cell = Tested::over(store.clone(), |_| {}).await;
        cell.beat("h1", 1, 8192).await;
        let before = cell.reserve("before", 512).await.expect(201);
        store.inject([fault]);
        let lost = cell.reserve("lost", 512).await.expect_code(503, "store_unavailable");
        assert!(lost.headers.contains_key("retry-after"));
        until("the cell leads again", || async {
            cell.client
                .get(format!("http://{}/readyz", cell.cell.address()))
                .send()
                .await
                .is_ok_and(|answer| answer.status() == 200)
        })
        .await;
        // What hosts said is no ledger: it was not lost, and the next call is admitted.
        let again = cell.reserve("lost", 512).await.expect(201);
        let once_more = cell.reserve("lost", 512).await.expect(201);
        assert_eq!(again.body["id"], once_more.body["id"], "{fault:?}");
        let same = cell.reserve("before", 512).await.expect(201);
        assert_eq!(same.body["id"], before.body["id"]);
        let sample = r#"plimsoll_reservations{host="h1",state="reserved"}"#;
        assert_eq!(cell.metric(sample).await, Some(2.0), "{fault:?}");
    }
}

/// A writer that lost its lease cannot commit, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_is_noticed_at_the_next_commit() {
    let store = MemoryStore::new();
    let cell = Tested::over(store.clone(), |_| {}).await;
    cell.beat("h1", 1, 8192).await;
    store.inject([Fault::Fenced]);
    cell.reserve("lost", 512).await.expect_code(503, "not_leader");
    until("the cell leads again", || async {
        let status = cell.admin(reqwest::Method::GET, "/v1/admin/status", json!(null)).await;
        status.body["role"] == "leader"
    })
    .await;
    cell.reserve("lost", 512).await.expect(201);
}

/// Many at once while the store fails: every one is answered, and nothing is admitted twice.
#[tokio::test(flavor = "multi_thread")]
async fn everybody_is_answered_when_batches_fail() {
    let store = MemoryStore::new();
    let cell = Tested::over(store.clone(), |_| {}).await;
    cell.beat("h1", 1, 60_000).await;
    store.inject([Fault::None, Fault::Fail, Fault::None, Fault::FailAfterApply]);
    let keys: Vec<String> = (0..200).map(|key| format!("k{key}")).collect();
    let answers = join_all(keys.iter().map(|key| cell.reserve(key, 128))).await;
    for answer in &answers {
        assert!([201, 503].contains(&answer.status.as_u16()), "{}", answer.text);
    }
    until("every key has its reservation", || async {
        let again = join_all(keys.iter().map(|key| cell.reserve(key, 128))).await;
        again.iter().all(|answer| answer.status == 201)
    })
    .await;
    let sample = r#"plimsoll_reservations{host="h1",state="reserved"}"#;
    assert_eq!(cell.metric(sample).await, Some(200.0));
    let again = join_all(keys.iter().map(|key| cell.reserve(key, 128))).await;
    for (before, after) in answers.iter().zip(&again) {
        if before.status == 201 {
            assert_eq!(before.body["id"], after.body["id"], "an acknowledged one was lost");
        }
    }
}

/// What became of deliveries is kept by the writer, and whoever waits is told whether it was.
#[tokio::test(flavor = "multi_thread")]
async fn delivery_records_go_through_the_writer() {
    let store = MemoryStore::new();
    let cell = Tested::over(store.clone(), |_| {}).await;
    let endpoint = json!({ "url": "https://example.com/hook" });
    let made = cell.post("/v1/webhooks/endpoints", endpoint).await.expect(201);
    let endpoint = made.body["id"].as_str().unwrap().parse().unwrap();
    let progress = || vec![Progress { endpoint, cursor: EventId(7), failing_since: None }];
    let core = cell.cell.core();
    assert_eq!(core.record(Vec::new(), progress()).await, Ok(()));
    assert_eq!(store.reader().progress().unwrap()[0].cursor, EventId(7));
    store.inject([Fault::Fail]);
    assert!(core.record(Vec::new(), progress()).await.is_err());
    until("records are taken again", || async {
        core.record(Vec::new(), progress()).await.is_ok()
    })
    .await;
}

/// While the store takes nothing, what is there can be read, and nothing can be asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_still_answers_questions() {
    let store = MemoryStore::new();
    let cell = Tested::over(store.clone(), |_| {}).await;
    cell.beat("h1", 1, 8192).await;
    let made = cell.reserve("before", 512).await.expect(201);
    let path = format!("/v1/reservations/{}", made.body["id"].as_str().unwrap());
    // The batch, and the first beginnings after it: together some seconds.
    store.inject([Fault::Full; 8]);
    cell.reserve("lost", 512).await.expect_code(503, "store_unavailable");
    let ready = async || Tested::send(cell.request(Method::GET, "/readyz")).await.status == 200;
    let answers = async || {
        let mut all = vec![
            cell.get(&path).await,
            cell.get("/v1/sandboxes").await,
            cell.get("/v1/quota").await,
            cell.get("/v1/events").await,
        ];
        for path in ["pools", "plans", "tenants", "templates", "keys", "hosts", "decisions"] {
            all.push(cell.admin(Method::GET, &format!("/v1/admin/{path}"), json!(null)).await);
        }
        all
    };
    until("every question is answered while it does not lead", || async {
        let answers = answers().await;
        // Did it lead before the last answer, this says nothing: but then it leads now.
        !ready().await && answers.iter().all(|answer| answer.status == 200)
    })
    .await;
    let hosts = cell.admin(Method::GET, "/v1/admin/hosts/h1", json!(null)).await.expect(200);
    assert_eq!((&hosts.body["status"], &hosts.body["guests"]), (&json!("fresh"), &json!(1)));
    cell.reserve("lost", 512).await.expect_code(503, "store_unavailable");
    until("the cell leads again", ready).await;
    cell.reserve("lost", 512).await.expect(201);
    assert_eq!(cell.get(&path).await.expect(200).body, made.body);
}
