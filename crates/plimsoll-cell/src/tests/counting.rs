//! What is counted: refusals wherever they are made, pools from the start, requests of tenants.

use std::time::Duration;

use plimsoll_store::{LoadLimits, MemoryStore, Store};
use plimsoll_types::{Millis, Timestamp};
use reqwest::Method;
use serde_json::{Value, json};

use super::{Tested, until};

#[tokio::test]
async fn refusals_that_handlers_make_are_counted_once_by_code() {
    let cell = Tested::memory().await;
    let nobody = cell.request(Method::GET, "/v1/quota");
    Tested::send(nobody).await.expect_code(401, "unauthenticated");
    cell.call("tenant-default", Method::GET, "/v1/admin/plans", None)
        .await
        .expect_code(403, "forbidden");
    cell.get("/v1/nothing").await.expect_code(404, "not_found");
    cell.get("/v1/usage?group_by=moon").await.expect_code(400, "invalid_request");
    // One of the engine's own, which counts it with its pool.
    let body = json!({ "template": "no-such" });
    cell.post("/v1/sandboxes", body).await.expect_code(422, "unknown_template");
    let count = async |code: &str, pool: &str| {
        let sample = format!("plimsoll_refusals_total{{code=\"{code}\",pool=\"{pool}\"}}");
        cell.metric(&sample).await
    };
    for code in ["unauthenticated", "forbidden", "not_found", "invalid_request"] {
        assert_eq!(count(code, "").await, Some(1.0), "{code}");
    }
    let engine = [count("unknown_template", "").await, count("unknown_template", "local").await];
    assert_eq!(engine.map(Option::unwrap_or_default).iter().sum::<f64>(), 1.0);
}

#[tokio::test]
async fn a_pool_is_counted_from_zero() {
    let cell = Tested::memory().await;
    for sample in [
        "plimsoll_admissions_total{pool=\"local\",mode=\"normal\"}",
        "plimsoll_refusals_total{code=\"no_capacity\",pool=\"local\"}",
        "plimsoll_resumes_queued_total{pool=\"local\"}",
        "plimsoll_resume_wait_seconds_count{pool=\"local\"}",
        "plimsoll_preemptions_total{pool=\"local\",mode=\"idle\"}",
        "plimsoll_lifecycle_actions_total{action=\"max_run\",pool=\"local\"}",
    ] {
        assert_eq!(cell.metric(sample).await, Some(0.0), "{sample}");
    }
}

#[tokio::test]
async fn requests_of_a_young_tenant_come_to_be_known() {
    let store = MemoryStore::new();
    let mut after: Box<dyn Store> = Box::new(store.clone());
    let cell = Tested::over(store, |config| {
        config.request_counts = Duration::from_millis(10);
        // Written with the batch that it came in.
        config.engine.state_write_interval = Millis(0);
    })
    .await;
    for _ in 0..7 {
        cell.get("/v1/quota").await.expect(200);
    }
    cell.admin(Method::GET, "/v1/admin/plans", Value::Null).await.expect(200);
    until("the counts", async || {
        cell.metric("plimsoll_tenant_requests_total").await.is_some_and(|count| count >= 7.0)
    })
    .await;
    // Behind them in the same lane: when this is answered they are durable.
    cell.admin(Method::GET, "/v1/admin/plans", Value::Null).await.expect(200);
    cell.stop().await;
    let now = Timestamp(1_800_000_000_000);
    let lease = after.acquire("test", now).unwrap();
    let rows = after.load(&lease, now, &LoadLimits::default()).unwrap();
    let row = rows.tenant_states.iter().find(|row| row.tenant.as_str() == "default").unwrap();
    assert_eq!(row.state["shape"]["requests"], 7, "{}", row.state);
}

#[tokio::test]
async fn use_can_be_asked_for_by_the_day() {
    let cell = Tested::memory().await;
    let answer = cell.get("/v1/usage?group_by=day").await.expect(200);
    assert_eq!(answer.body, json!({ "items": [], "next_cursor": null }));
    let total = cell.get("/v1/usage?group_by=total").await.expect(200);
    assert_eq!(total.body["items"][0]["cpu_seconds"], 0);
    // Without `from` it is of the period.
    let quota = cell.get("/v1/quota").await.expect(200);
    assert_eq!(total.body["items"][0]["from"], quota.body["starts_at"]);
    assert!(quota.body["starts_at"].is_string());
    let query = "/v1/usage?group_by=day&cursor=yesterday";
    cell.get(query).await.expect_code(400, "invalid_request");
}
