//! What operators make and change.

use reqwest::Method;
use serde_json::{Value, json};

use super::Tested;

/// A name that is taken is no licence to set everything else back to its default.
#[tokio::test(flavor = "multi_thread")]
async fn making_what_is_there_changes_what_is_named_and_nothing_else() {
    let cell = Tested::memory().await;
    let cases = [
        (
            "pools",
            json!({"name": "x", "limit": 5, "regime": "committed"}),
            json!({"name": "x", "limit": null}),
        ),
        (
            "templates",
            json!({"name": "x", "driver": "process", "memory_mib": 64, "vcpus": 3}),
            json!({"name": "x", "driver": "process", "memory_mib": 128}),
        ),
        (
            "plans",
            json!({"id": "x", "rate": {"creates_per_minute": {"limit": 7}},
                "concurrency": {"vcpus": {"limit": 9}}}),
            json!({"id": "x", "rate": {"creates_per_minute": {"limit": 8}}}),
        ),
        (
            "tenants",
            json!({"id": "x", "plan": "x", "created_at": "2026-01-02T03:04:05Z"}),
            json!({"id": "x", "payment_method": true}),
        ),
    ];
    for (kind, first, other) in cases {
        let path = format!("/v1/admin/{kind}");
        let made = cell.admin(Method::POST, &path, first.clone()).await.expect(201);
        let again = cell.admin(Method::POST, &path, first).await.expect(200);
        assert_eq!(again.body, made.body, "{kind}");
        let changed = cell.admin(Method::POST, &path, other.clone()).await.expect(200);
        let mut wanted = made.body.clone();
        for (name, value) in other.as_object().unwrap() {
            match (&mut wanted[name], value) {
                (Value::Object(held), Value::Object(new)) => held.extend(new.clone()),
                (held, new) => *held = new.clone(),
            }
        }
        assert_eq!(changed.body, wanted, "{kind}");
        let held = cell.admin(Method::GET, &format!("{path}/x"), Value::Null).await.expect(200);
        assert_eq!(held.body, wanted, "{kind}");
    }
    // The pool of the first start, too.
    let body = json!({ "name": "local", "limit": 1 });
    let local = cell.admin(Method::POST, "/v1/admin/pools", body).await.expect(200);
    assert_eq!(local.body["limit"], 1);
    let broken = json!({ "id": "x", "plan": "nowhere" });
    let refused = cell.admin(Method::POST, "/v1/admin/tenants", broken).await;
    assert_eq!(refused.expect_code(400, "invalid_request").body["field"], "plan");
}
