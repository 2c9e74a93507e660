//! Every bad body gets a problem that names the field and its bound.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Answer, Tested};

async fn raw(cell: &Tested, method: Method, path: &str, body: impl Into<reqwest::Body>) -> Answer {
    let request = cell.request(method, path).bearer_auth(cell.key("operator"));
    Tested::send(request.body(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_bodies_name_the_field() {
    let cell = Tested::memory().await;
    let reserve = "/v1/reservations";
    let create = "/v1/sandboxes";
    let table: &[(&str, &str, &str)] = &[
        (reserve, "", "body"),
        (reserve, "{", "body"),
        (reserve, "[]", "body"),
        (reserve, "null", "body"),
        (reserve, "{}", "key"),
        (reserve, r#"{"key":"k","vcpus":1}"#, "memory_mib"),
        (reserve, r#"{"key":"","memory_mib":1,"vcpus":1}"#, "key"),
        (reserve, r#"{"key":"a b","memory_mib":1,"vcpus":1}"#, "key"),
        (reserve, r#"{"key":"k","memory_mib":0,"vcpus":1}"#, "memory_mib"),
        (reserve, r#"{"key":"k","memory_mib":-1,"vcpus":1}"#, "memory_mib"),
        (reserve, r#"{"key":"k","memory_mib":1.5,"vcpus":1}"#, "memory_mib"),
        (reserve, r#"{"key":"k","memory_mib":"1","vcpus":1}"#, "memory_mib"),
        (reserve, r#"{"key":"k","memory_mib":1e40,"vcpus":1}"#, "memory_mib"),
        (reserve, r#"{"key":"k","memory_mib":99999999999999999999,"vcpus":1}"#, "memory_mib"),
        (reserve, r#"{"key":"k","memory_mib":1,"vcpus":0}"#, "vcpus"),
        (reserve, r#"{"key":"k","memory_mib":1,"vcpus":1,"ttl_seconds":0}"#, "ttl_seconds"),
        (reserve, r#"{"key":"k","memory_mib":1,"vcpus":1,"priority":1001}"#, "priority"),
        (reserve, r#"{"key":"k","memory_mib":1,"vcpus":1,"mode":"maybe"}"#, "mode"),
        (reserve, r#"{"key":"k","memory_mib":1,"vcpus":1,"memory_mb":1}"#, "memory_mb"),
        (reserve, r#"{"key":"k","key":"l","memory_mib":1,"vcpus":1}"#, "key"),
        ("/v1/reservations/batch", r#"{"items":[]}"#, "items"),
        ("/v1/reservations/batch", r#"{"items":[{"key":"k","memory_mib":1}]}"#, "items[0].vcpus"),
        (create, r#"{"template":"shell","env":{"A":1}}"#, "env.A"),
        (create, r#"{"template":"sh ell"}"#, "template"),
        (create, r#"{"template":"shell","command":[""]}"#, "command[0]"),
        (create, r#"{"template":"shell","on_full":"drop"}"#, "on_full"),
        (create, r#"{"template":"shell","wait_seconds":601}"#, "wait_seconds"),
        (create, r#"{"template":"shell","lifecycle":{"ttl_seconds":5}}"#, "lifecycle.ttl_seconds"),
        ("/v1/explain", r#"{"template":"shell","vcpus":0}"#, "vcpus"),
        ("/v1/admin/keys", r#"{"role":"tenant"}"#, "tenant"),
        ("/v1/admin/tenants", r#"{"id":"t","plan":"nothing"}"#, "plan"),
        ("/v1/admin/pools", r#"{"name":"p","dead_seconds":1}"#, "dead_seconds"),
        ("/v1/webhooks/endpoints", r#"{"url":"http://127.0.0.1/x"}"#, "url"),
        ("/v1/webhooks/endpoints", r#"{"url":"http://localhost:80/x"}"#, "url"),
        ("/v1/webhooks/endpoints", r#"{"url":"http://[::1]/x"}"#, "url"),
        ("/v1/webhooks/endpoints", r#"{"url":"ftp://example.com"}"#, "url"),
        ("/v1/hosts/h1/heartbeat", r#"{"boot_id":"b","sequence":1}"#, "memory_mib_total"),
        ("/v1/hosts/h%201/heartbeat", r#"{"boot_id":"b","sequence":1}"#, "host"),
    ];
    for (path, body, field) in table {
        let answer = raw(&cell, Method::POST, path, *body).await;
        let answer = answer.expect_code(400, "invalid_request");
        assert_eq!(answer.body["field"], *field, "{path} {body}: {}", answer.text);
        assert!(!answer.body["bound"].as_str().unwrap().is_empty(), "{path} {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_text_and_bodies_that_are_too_large() {
    let cell = Tested::memory().await;
    let bytes = b"{\"key\":\"\xff\xfe\",\"memory_mib\":1,\"vcpus\":1}".to_vec();
    raw(&cell, Method::POST, "/v1/reservations", bytes).await.expect_code(400, "invalid_request");
    let large = vec![b' '; (1 << 20) + 1];
    let answer = raw(&cell, Method::POST, "/v1/reservations", large.clone()).await;
    let answer = answer.expect_code(413, "payload_too_large");
    assert!(answer.body["bound"].as_str().unwrap().contains("1048576"));
    // The same in pieces, without a length beforehand.
    let pieces = large.chunks(100_000).map(|piece| {
        let piece = axum::body::Bytes::copy_from_slice(piece);
        Ok::<_, std::io::Error>(hyper::body::Frame::data(piece))
    });
    let pieces = futures_util::stream::iter(pieces.collect::<Vec<_>>());
    let body = reqwest::Body::wrap(http_body_util::StreamBody::new(pieces));
    let answer = raw(&cell, Method::POST, "/v1/reservations", body).await;
    answer.expect_code(413, "payload_too_large");
    // A heartbeat may be larger.
    let mut beat = br#"{"boot_id":"b","sequence":1,"memory_mib_total":1}"#.to_vec();
    beat.extend(large);
    raw(&cell, Method::POST, "/v1/hosts/h1/heartbeat", beat).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_are_checked_too() {
    let cell = Tested::memory().await;
    for (path, field) in [
        ("/v1/sandboxes?limit=0", "limit"),
        ("/v1/sandboxes?limit=1001", "limit"),
        ("/v1/sandboxes?cursor=nonsense", "cursor"),
        ("/v1/sandboxes?status=asleep", "status"),
        ("/v1/sandboxes?label=nocolon", "label"),
        ("/v1/sandboxes?state=running", "state"),
        ("/v1/admin/decisions?code=nothing", "code"),
        ("/v1/admin/decisions?from=yesterday", "from"),
        ("/v1/events?after=nonsense", "after"),
        ("/v1/quota?x=1", "x"),
        ("/v1/usage?group_by=moon", "group_by"),
        ("/v1/usage?cursor=zz", "cursor"),
    ] {
        let answer = cell.admin(Method::GET, path, Value::Null).await;
        let answer = answer.expect_code(400, "invalid_request");
        assert_eq!(answer.body["field"], field, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_routes_methods_and_objects_are_problems() {
    let cell = Tested::memory().await;
    let get = async |path| cell.admin(Method::GET, path, Value::Null).await;
    get("/v1/nothing").await.expect_code(404, "not_found");
    get("/v1/sandboxes/nonsense").await.expect_code(404, "not_found");
    get("/v1/sandboxes/sbx_00000000000000000000000000").await.expect_code(404, "not_found");
    get("/v1/reservations/rsv_00000000000000000000000000").await.expect_code(404, "not_found");
    get("/v1/admin/hosts/nobody").await.expect_code(404, "not_found");
    get("/v1/admin/plans/none").await.expect_code(404, "not_found");
    let put = cell.admin(Method::PUT, "/v1/sandboxes", Value::Null).await;
    put.expect_code(405, "method_not_allowed");
    let late = "/v1/reservations/rsv_00000000000000000000000000/commit";
    cell.post(late, serde_json::json!({})).await.expect_code(404, "not_found");
}

/// A host that counts wrong is told so, and stays in as soon as it counts right again.
#[tokio::test(flavor = "multi_thread")]
async fn an_absurd_report_is_refused_and_not_taken_over() {
    let cell = Tested::memory().await;
    cell.beat("h1", 1, 8192).await;
    let body = |field: &str, value: Value| {
        let mut body = json!({ "boot_id": "b1", "sequence": 2, "memory_mib_total": 65536,
            "memory_mib_admittable": 4096 });
        body[field] = value;
        body.to_string()
    };
    let cases = [
        ("sequence", json!(i64::MAX)),
        ("sequence", json!((1_u64 << 53) - 1)),
        ("incarnation", json!((1_u64 << 53) - 1)),
        ("memory_mib_admittable", json!(-(1_i64 << 40))),
        ("starts_in_flight", json!(u32::MAX)),
    ];
    for (field, value) in cases {
        let sent = body(field, value);
        let answer = raw(&cell, Method::POST, "/v1/hosts/h1/heartbeat", sent).await;
        let answer = answer.expect_code(400, "invalid_request");
        assert_eq!(answer.body["field"], field, "{}", answer.text);
        assert!(answer.body["bound"].as_str().unwrap().contains(char::is_numeric));
    }
    let taken = cell.beat("h1", 2, 8192).await;
    assert_eq!(taken.body["accepted"], true, "{}", taken.text);
    // Less than nothing is what a host admits that is over its budget.
    let taken = cell.beat("h1", 3, -1).await;
    assert_eq!(taken.body["accepted"], true, "{}", taken.text);
    let host = cell.admin(Method::GET, "/v1/admin/hosts/h1", Value::Null).await.expect(200);
    assert_eq!(host.body["memory_mib_admittable"], -1);
    assert!(host.body["clock_skew_millis"].as_i64().unwrap() < -300_000, "{}", host.text);
}
