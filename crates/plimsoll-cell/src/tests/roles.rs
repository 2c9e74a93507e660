//! Who may call what.

use reqwest::Method;
use serde_json::{Value, json};

use super::Tested;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_needed_and_must_be_known() {
    let cell = Tested::memory().await;
    let quota = || cell.request(Method::GET, "/v1/quota");
    let none = Tested::send(quota()).await.expect_code(401, "unauthenticated");
    assert_eq!(none.headers.get("www-authenticate").unwrap(), "Bearer");
    for value in ["", "Bearer", "Bearer ", "Bearer nonsense", "Basic eDp5"] {
        let request = quota().header("Authorization", value);
        Tested::send(request).await.expect_code(401, "unauthenticated");
    }
    let lower = quota().header("Authorization", format!("bearer {}", cell.key("operator")));
    Tested::send(lower).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_see_their_own_and_operators_act_for_them() {
    let cell = Tested::memory().await;
    cell.beat("h1", 1, 8192).await;
    cell.admin(Method::POST, "/v1/admin/tenants", json!({ "id": "other" })).await.expect(201);
    let key = json!({ "role": "tenant", "tenant": "other" });
    let key = cell.admin(Method::POST, "/v1/admin/keys", key).await.expect(201);
    let key = key.body["key"].as_str().unwrap().to_owned();
    let made = cell.reserve("k1", 512).await.expect(201);
    let path = format!("/v1/reservations/{}", made.body["id"].as_str().unwrap());
    let as_other = |method, path: &str| cell.request(method, path).bearer_auth(&key);
    Tested::send(as_other(Method::GET, &path)).await.expect_code(404, "not_found");
    Tested::send(as_other(Method::DELETE, &path)).await.expect_code(404, "not_found");
    // The same key of another tenant is another reservation.
    let body = json!({ "key": "k1", "memory_mib": 512, "vcpus": 1 });
    let own =
        Tested::send(as_other(Method::POST, "/v1/reservations").json(&body)).await.expect(201);
    assert_ne!(own.body["id"], made.body["id"]);
    assert_eq!(own.body["tenant"], "other");

    let acting = cell.request(Method::GET, "/v1/quota").bearer_auth(cell.key("operator"));
    let quota = Tested::send(acting.header("Plimsoll-Tenant", "other")).await.expect(200);
    assert_eq!(quota.body["tenant"], "other");
    assert_eq!(quota.body["concurrency"]["sandboxes"]["used"], 1);
    // A tenant's key does not act for others, whatever it says.
    let acting = as_other(Method::GET, "/v1/quota").header("Plimsoll-Tenant", "default");
    assert_eq!(Tested::send(acting).await.expect(200).body["tenant"], "other");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_one_host_speaks_for_that_host() {
    let cell = Tested::memory().await;
    let key = json!({ "role": "host", "host": "h1" });
    let key = cell.admin(Method::POST, "/v1/admin/keys", key).await.expect(201);
    let key = key.body["key"].as_str().unwrap().to_owned();
    let beat = json!({ "boot_id": "b", "sequence": 1, "memory_mib_total": 1024 });
    let as_host = |path: &str| cell.request(Method::POST, path).bearer_auth(&key).json(&beat);
    Tested::send(as_host("/v1/hosts/h1/heartbeat")).await.expect(200);
    Tested::send(as_host("/v1/hosts/h2/heartbeat")).await.expect_code(403, "forbidden");
    Tested::send(as_host("/v1/hosts/h2/register")).await.expect_code(403, "forbidden");
    let reserve = as_host("/v1/reservations");
    Tested::send(reserve).await.expect_code(403, "forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn enrolment_can_be_required_of_each_host() {
    let store = plimsoll_store::MemoryStore::new();
    let cell = Tested::over(store, |config| config.require_enrolment = true).await;
    assert!(!cell.folder.path().join("host.key").exists());
    let any = cell.admin(Method::POST, "/v1/admin/keys", json!({ "role": "host" })).await;
    let any = any.expect(201).body["key"].as_str().unwrap().to_owned();
    let beat = json!({ "boot_id": "b", "sequence": 1, "memory_mib_total": 1024 });
    let request = cell.request(Method::POST, "/v1/hosts/h1/heartbeat").json(&beat);
    Tested::send(request.bearer_auth(any)).await.expect_code(403, "forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_can_be_kept_for_operators() {
    let store = plimsoll_store::MemoryStore::new();
    let cell = Tested::over(store, |config| config.metrics_open = false).await;
    let scrape = || cell.request(Method::GET, "/metrics");
    Tested::send(scrape()).await.expect_code(401, "unauthenticated");
    let tenant = scrape().bearer_auth(cell.key("tenant-default"));
    Tested::send(tenant).await.expect_code(403, "forbidden");
    let text = cell.admin(Method::GET, "/metrics", Value::Null).await.expect(200).text;
    assert!(text.contains("plimsoll_refusals_total{code=\"no_capacity\",pool=\"\"} 0"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}
