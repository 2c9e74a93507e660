//! Reservations over HTTP, the codes of refusals, and the open routes.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use super::Tested;

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_an_agent_is_enough_to_reserve() {
    for cell in [Tested::memory().await, Tested::sqlite().await] {
        let answer = cell.reserve("k1", 4096).await.expect_code(503, "no_healthy_hosts");
        assert!(answer.headers.contains_key("retry-after"));
        cell.beat("h1", 1, 8192).await;
        let made = cell.reserve("k1", 4096).await.expect(201);
        assert_eq!(made.body["host"], "h1");
        assert_eq!(made.body["charge_mib"], 1024);
        assert_eq!(made.body["generation"], 1);
        let decision = made.headers.get("plimsoll-decision").unwrap().to_str().unwrap();
        assert_eq!(made.body["decision_id"], decision);
        // The same key and body is the same reservation; another body is a conflict.
        let again = cell.reserve("k1", 4096).await.expect(201);
        assert_eq!(again.body["id"], made.body["id"]);
        cell.reserve("k1", 2048).await.expect_code(409, "conflict");

        let id = made.body["id"].as_str().unwrap();
        let path = format!("/v1/reservations/{id}");
        let commit = cell.post(&format!("{path}/commit"), json!({})).await.expect(200);
        assert_eq!(commit.body["state"], "committed");
        let renew = format!("{path}/renew");
        let renew = cell.call("tenant-default", Method::POST, &renew, None).await.expect(200);
        assert_eq!(renew.body["state"], "committed");
        assert_eq!(cell.get(&path).await.expect(200).body["state"], "committed");
        let host = [("reserved", 0.0), ("committed", 1.0)];
        for (state, count) in host {
            let sample = format!(r#"plimsoll_reservations{{host="h1",state="{state}"}}"#);
            assert_eq!(cell.metric(&sample).await, Some(count));
        }
        for _ in 0..2 {
            let gone = cell.call("tenant-default", Method::DELETE, &path, None).await;
            assert!(gone.status.is_success(), "{}", gone.text);
        }
        cell.post(&format!("{path}/commit"), json!({})).await.expect(409);
        assert_eq!(cell.metric(r#"plimsoll_reserved_mib{host="h1"}"#).await, Some(0.0));
        cell.stop().await;
    }
}

/// R1: limit 100, 99 used, 10 at once: exactly one.
#[tokio::test(flavor = "multi_thread")]
async fn ten_at_once_for_one_place_admit_one() {
    let cell = Tested::sqlite().await;
    cell.beat("h1", 1, 60_000).await;
    let plan = json!({ "id": "hundred", "concurrency": { "sandboxes": { "limit": 100 } } });
    cell.admin(Method::POST, "/v1/admin/plans", plan).await.expect(201);
    let path = "/v1/admin/tenants/default";
    cell.admin(Method::PATCH, path, json!({ "plan": "hundred" })).await.expect(200);
    let items: Vec<Value> = (0..99)
        .map(|item| json!({ "key": format!("b{item}"), "memory_mib": 128, "vcpus": 1 }))
        .collect();
    let batch = cell.post("/v1/reservations/batch", json!({ "items": items })).await.expect(201);
    assert_eq!(batch.body["items"].as_array().unwrap().len(), 99);
    let keys: Vec<String> = (0..10).map(|key| format!("r{key}")).collect();
    let answers = join_all(keys.iter().map(|key| cell.reserve(key, 128))).await;
    let admitted = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(admitted, 1);
    for answer in answers.into_iter().filter(|answer| answer.status != 201) {
        let answer = answer.expect_code(403, "quota_exceeded");
        assert_eq!(answer.body["limit"], 100);
        assert_eq!(answer.body["used"], 100);
        assert!(!answer.headers.contains_key("retry-after"));
    }
    let quota = cell.get("/v1/quota").await.expect(200);
    assert_eq!(quota.body["concurrency"]["sandboxes"]["used"], 100);
    assert_eq!(quota.body["plan"], "hundred");
}

/// W1: a typed code, the counts per filter, and a decision that the log opens. W2: a full fleet
/// and busy starts are told apart.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_why_and_the_log_opens_it() {
    let cell = Tested::memory().await;
    cell.beat("h1", 1, 512).await;
    let answer = cell.reserve("k1", 8192).await.expect_code(503, "no_capacity");
    assert_eq!(answer.body["counts"]["full"], 1);
    assert!(answer.body["retry_after_millis"].is_u64());
    let id = answer.body["decision_id"].as_str().unwrap();
    let path = format!("/v1/admin/decisions/{id}");
    let decision = cell.admin(Method::GET, &path, Value::Null).await.expect(200);
    assert_eq!(decision.body["code"], "no_capacity");
    assert_eq!(decision.body["counts"]["full"], 1);
    assert_eq!(decision.body["verdict"], "refuse");
    let list = "/v1/admin/decisions?code=no_capacity&tenant=default";
    let log = cell.admin(Method::GET, list, Value::Null).await.expect(200);
    assert_eq!(log.body["items"][0]["id"], id);
    // What the tenant may read names no host.
    assert!(!answer.text.contains("h1"), "{}", answer.text);
    let explain = json!({ "key": "x", "memory_mib": 8192, "vcpus": 1 });
    let tenant = cell.post("/v1/explain", explain.clone()).await.expect(200);
    assert_eq!(tenant.body["code"], "no_capacity");
    assert!(tenant.body["hosts"][0].get("host").is_none(), "{}", tenant.text);
    let operator = cell.admin(Method::POST, "/v1/explain", explain).await.expect(200);
    assert_eq!(operator.body["hosts"][0]["host"], "h1");
    assert_eq!(operator.body["hosts"][0]["filter"], "full");
    let sample = r#"plimsoll_refusals_total{code="no_capacity",pool="local"}"#;
    assert_eq!(cell.metric(sample).await, Some(1.0));
}

/// W5: larger than any host is never, at once. W6: unknown names are never, and say what exists.
#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_be_is_said_at_once() {
    let cell = Tested::memory().await;
    cell.beat("h1", 1, 60_000).await;
    let never = cell.reserve("k1", 70_000).await.expect_code(422, "never_fits");
    assert_eq!(never.body["largest_host_memory_mib"], 65_536);
    assert!(!never.headers.contains_key("retry-after"));
    let body = json!({ "key": "k", "memory_mib": 128, "vcpus": 1, "pool": "nowhere" });
    let pool = cell.post("/v1/reservations", body).await.expect_code(422, "unknown_pool");
    assert_eq!(pool.body["known"], json!(["local"]));
    let body = json!({ "template": "nothing" });
    let create = cell.post("/v1/sandboxes", body).await.expect_code(422, "unknown_template");
    assert_eq!(create.body["known"], json!(["shell"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_changes_nothing_and_a_batch_is_all_or_nothing() {
    let cell = Tested::memory().await;
    cell.beat("h1", 1, 1024).await;
    let body = json!({ "key": "k", "memory_mib": 1024, "vcpus": 1, "mode": "dry_run" });
    let dry = cell.post("/v1/reservations", body).await.expect(200);
    assert_eq!(dry.body["dry_run"], true);
    assert_eq!(dry.body["host"], "h1");
    assert!(dry.headers.contains_key("plimsoll-decision"));
    let item = |key: &str| json!({ "key": key, "memory_mib": 512, "vcpus": 1 });
    let three = json!({ "items": [item("a"), item("b"), item("c")] });
    cell.post("/v1/reservations/batch", three).await.expect_code(503, "no_capacity");
    let two = json!({ "items": [item("a"), item("b")] });
    cell.post("/v1/reservations/batch", two).await.expect(201);
    cell.reserve("d", 512).await.expect_code(503, "no_capacity");
}

/// Reserved by one that waits, answered when room comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_waits_for_room() {
    let cell = Tested::memory().await;
    cell.beat("h1", 1, 0).await;
    let body = json!({ "key": "k", "memory_mib": 512, "vcpus": 1, "mode": "wait" });
    let (waited, _) = tokio::join!(cell.post("/v1/reservations", body), async {
        super::until("the reservation waits", || async {
            let sample = r#"plimsoll_pool_slots{pool="local",state="waiting_create"}"#;
            cell.metric(sample).await == Some(1.0)
        })
        .await;
        cell.beat("h1", 2, 4096).await
    });
    assert_eq!(waited.expect(201).body["host"], "h1");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_routes_need_no_key() {
    let cell = Tested::memory().await;
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/"] {
        let answer = Tested::send(cell.request(Method::GET, path)).await.expect(200);
        assert!(!answer.text.is_empty(), "{path}");
        let head = Tested::send(cell.request(Method::HEAD, path)).await.expect(200);
        assert!(head.text.is_empty(), "{path}");
    }
    let address = std::fs::read_to_string(cell.folder.path().join("address")).unwrap();
    assert_eq!(address.trim(), cell.cell.address().to_string());
    let status = cell.admin(Method::GET, "/v1/admin/status", Value::Null).await.expect(200);
    assert_eq!(status.body["role"], "leader");
    assert_eq!(status.body["epoch"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_there_after_a_restart() {
    let cell = Tested::sqlite().await;
    cell.beat("h1", 1, 8192).await;
    let made = cell.reserve("k1", 4096).await.expect(201);
    let key = json!({ "role": "tenant", "tenant": "default" });
    let key = cell.admin(Method::POST, "/v1/admin/keys", key).await.expect(201);
    let folder = cell.stop().await;

    let cell = Tested::again(folder).await;
    let again = cell.reserve("k1", 4096).await.expect(201);
    assert_eq!(again.body["id"], made.body["id"]);
    let text = key.body["key"].as_str().unwrap();
    let path = format!("/v1/reservations/{}", made.body["id"].as_str().unwrap());
    let request = cell.request(Method::GET, &path).bearer_auth(text);
    assert_eq!(Tested::send(request).await.expect(200).body["state"], "reserved");
    // Hosts are unknown until they report again, and nothing is placed on them.
    cell.reserve("k2", 512).await.expect_code(503, "no_healthy_hosts");
    cell.beat("h1", 2, 8192).await;
    cell.reserve("k2", 512).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_shown_once_per_idempotency_key() {
    let cell = Tested::memory().await;
    let body = json!({ "role": "tenant", "tenant": "default" });
    let ask = |body: &Value, key: &str| {
        let request = cell.request(Method::POST, "/v1/admin/keys").json(body);
        let request = request.bearer_auth(cell.key("operator")).header("Idempotency-Key", key);
        Tested::send(request)
    };
    let one = ask(&body, "a").await.expect(201);
    let again = ask(&body, "a").await.expect(201);
    assert_eq!(one.body, again.body);
    let other = ask(&body, "b").await.expect(201);
    assert_ne!(one.body["key"], other.body["key"]);
    ask(&json!({ "role": "operator" }), "a").await.expect_code(409, "conflict");
    let path = format!("/v1/admin/keys/{}", one.body["id"].as_str().unwrap());
    cell.admin(Method::DELETE, &path, Value::Null).await.expect(204);
    let request =
        cell.request(Method::GET, "/v1/quota").bearer_auth(one.body["key"].as_str().unwrap());
    Tested::send(request).await.expect_code(401, "unauthenticated");
}
