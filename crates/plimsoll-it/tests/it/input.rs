//! Bad input: refused with the field and its bound, on the command line and over HTTP.

use crate::rig::Folder;

/// Words, exit code, what is said.
const TABLE: &[(&[&str], i32, &str)] = &[
    (&["frobnicate"], 2, "frobnicate"),
    (&["create", "--template=shell", "--nonsense"], 2, "--nonsense"),
    (&["create"], 2, "--template"),
    (&["create", "--template=Not A Name"], 2, "--template"),
    (&["create", "--template=process", "--memory-mib=0"], 2, "memory_mib"),
    (&["create", "--template=process", "--memory-mib=99999999999"], 2, "16777216"),
    (&["create", "--template=process", "--memory-mib=-1"], 2, "memory-mib"),
    (&["create", "--template=process", "--memory-mib=1.5"], 2, "memory-mib"),
    (&["create", "--template=process", "--vcpus=0"], 2, "vcpus"),
    (&["create", "--template=process", "--priority=1001"], 2, "priority"),
    (&["create", "--template=process", "--wait-seconds=601"], 2, "wait_seconds"),
    (&["create", "--template=process", "--ttl-seconds=59"], 2, "ttl_seconds"),
    (&["create", "--template=process", "--on-full=maybe"], 2, "reject, queue"),
    (&["create", "--template=process", "--criticality=vital"], 2, "sheddable"),
    (&["create", "--template=process", "--env=NAME"], 2, "NAME=VALUE"),
    (&["create", "--template=process", "--env=A=b", "--label==x"], 2, "NAME=VALUE"),
    (&["show", "sbx_nothing"], 2, "sbx_"),
    (&["show", "sbx_00000000000000000000000000"], 1, "not_found"),
    (&["exec", "sbx_00000000000000000000000000", "--", "true"], 1, "not_found"),
    (&["exec", "sbx_00000000000000000000000000"], 2, "COMMAND"),
    (&["wait", "sbx_00000000000000000000000000", "--timeout-seconds=601"], 2, "600"),
    (&["ls", "--status=asleep"], 2, "running"),
    (&["pools", "set", "local", "limt=3"], 2, "limt"),
    (&["pools", "set", "local", "stale_seconds=0"], 1, "stale_seconds"),
    (&["pools", "set", "nowhere", "limit=3"], 1, "no such pool"),
    (&["pools", "create", "local2", "regime=maybe"], 2, "working-set"),
    (
        &[
            "plans",
            "create",
            "p",
            "concurrency.sandboxes.limit=2",
            "concurrency.sandboxes.burst_limit=1",
        ],
        2,
        "burst_limit",
    ),
    (&["keys", "create", "--role=king"], 2, "operator"),
    (&["keys", "create", "--role=tenant"], 2, "tenant"),
    (&["decisions", "--code=because"], 2, "no_capacity"),
    (&["reserve", "--key=k", "--memory-mib=64", "--ttl-seconds=3601"], 2, "ttl_seconds"),
    (&["release", "rsv_00000000000000000000000000"], 1, "not_found"),
    (&["ls", "--url=ftp://nowhere"], 2, "http"),
    (&["ls", "--key-file=missing.key"], 2, "missing.key"),
    (&["drain", "nowhere"], 1, "nowhere"),
    (&["agent", "--cell=http://127.0.0.1:1"], 2, "--key-file"),
    (&["cell", "--store=mysql://x"], 2, "sqlite:FILE"),
    (&["up", "--heartbeat-millis=1", "--listen=127.0.0.1:0", "--data=other"], 2, "100 to 60000"),
    (&["cell", "--listen=0.0.0.0:0", "--data=other2"], 1, "insecure"),
];

#[test]
fn the_command_line_names_what_is_wrong() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=process,simulated", "--end-guests"]);
    for (words, code, text) in TABLE {
        folder.run(words).exits(*code).says(text);
    }
}

#[tokio::test]
async fn http_names_the_field_and_its_bound() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=process,simulated", "--end-guests"]);
    let data = folder.path().join("plimsoll-data");
    let read = |name: &str| std::fs::read_to_string(data.join(name)).unwrap().trim().to_owned();
    let (url, key) = (format!("http://{}", read("address")), read("tenant-default.key"));
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder().tls_certs_only([]).build().unwrap();
    let post = async |path: &str, key: Option<&str>, body: &str| {
        let mut request = http
            .post(format!("{url}{path}"))
            .body(body.to_owned())
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        assert!(kind.starts_with("application/problem+json"), "{path} {body}: {kind}");
        let text = answer.text().await.unwrap();
        let problem: serde_json::Value = serde_json::from_str(&text).unwrap();
        (status, problem)
    };
    let table = [
        ("/v1/sandboxes", "", 400, "", "invalid_request"),
        ("/v1/sandboxes", "{", 400, "", "invalid_request"),
        ("/v1/sandboxes", "[]", 400, "", "invalid_request"),
        (
            "/v1/sandboxes",
            r#"{"template": "process", "nonsense": 1}"#,
            400,
            "nonsense",
            "invalid_request",
        ),
        (
            "/v1/sandboxes",
            r#"{"template": "process", "memory_mib": 0}"#,
            400,
            "memory_mib",
            "invalid_request",
        ),
        (
            "/v1/sandboxes",
            r#"{"template": "process", "memory_mib": "1"}"#,
            400,
            "memory_mib",
            "invalid_request",
        ),
        (
            "/v1/sandboxes",
            r#"{"template": "process", "memory_mib": 1e30}"#,
            400,
            "memory_mib",
            "invalid_request",
        ),
        (
            "/v1/sandboxes",
            r#"{"template": "process", "lifecycle": {"ttl_seconds": 5}}"#,
            400,
            "lifecycle.ttl_seconds",
            "invalid_request",
        ),
        ("/v1/reservations", r#"{"key": "k", "memory_mib": 1}"#, 400, "vcpus", "invalid_request"),
        (
            "/v1/reservations",
            r#"{"key": "", "memory_mib": 1, "vcpus": 1}"#,
            400,
            "key",
            "invalid_request",
        ),
        ("/v1/reservations/batch", r#"{"items": []}"#, 400, "items", "invalid_request"),
        ("/v1/explain", r#"{"template": "process", "vcpus": 0}"#, 400, "vcpus", "invalid_request"),
        ("/v1/admin/pools", r#"{"name": "p"}"#, 403, "", "forbidden"),
        ("/v1/nowhere", "{}", 404, "", "not_found"),
    ];
    for (path, body, status, field, code) in table {
        let (got, problem) = post(path, Some(&key), body).await;
        assert_eq!(
            (got, problem["code"].as_str()),
            (status, Some(code)),
            "{path} {body}: {problem}"
        );
        if !field.is_empty() {
            assert_eq!(problem["field"], field, "{path} {body}: {problem}");
        }
    }
    let (status, problem) = post("/v1/sandboxes", None, "{}").await;
    assert_eq!((status, &problem["code"]), (401, &"unauthenticated".into()));
    let (status, problem) = post("/v1/sandboxes", Some("wrong"), "{}").await;
    assert_eq!((status, &problem["code"]), (401, &"unauthenticated".into()));
    let large = format!(r#"{{"template": "process", "command": ["{}"]}}"#, "x".repeat(2 << 20));
    let (status, problem) = post("/v1/sandboxes", Some(&key), &large).await;
    assert_eq!((status, &problem["code"]), (413, &"payload_too_large".into()));
}
