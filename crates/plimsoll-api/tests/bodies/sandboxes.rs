use super::*;

#[test]
fn the_contracts_create_is_taken() {
    let body: CreateSandbox = taken(json!({
        "template": "shell", "memory_mib": 512, "vcpus": 1, "stateful": false,
        "command": ["sh", "-c", "sleep 60"], "env": {"A": "b"}, "labels": {"team": "ci"},
        "pool": null, "priority": 0, "preemptible": true, "criticality": "standard",
        "on_full": "reject", "wait_seconds": 0,
        "lifecycle": {"idle_timeout_seconds": -1, "max_run_seconds": -1,
                      "max_paused_seconds": -1, "ttl_seconds": -1}
    }));
    assert_eq!(body.memory_mib, Some(512));
    assert_eq!(body.lifecycle.ttl_seconds, Some(-1));
    let least: CreateSandbox = taken(json!({"template": "shell"}));
    assert_eq!(least, CreateSandbox::new("shell".parse().unwrap()));
    assert!(least.preemptible);
    assert_eq!(least.criticality, Criticality::Standard);
}

#[test]
fn what_a_client_writes_a_server_reads() {
    let mut body = CreateSandbox::new("shell".parse().unwrap());
    body.env.0.insert("A".into(), "b".into());
    body.memory_mib = Some(7);
    body.lifecycle.max_run_seconds = Some(60);
    let text = serde_json::to_vec(&body).unwrap();
    assert_eq!(parse::<CreateSandbox>(&text).unwrap(), body);
}

#[test]
fn texts_and_lists_are_bounded() {
    let base = || {
        json!({"template": "a", "command": ["x"], "env": {"A": "b"}, "labels": {"k": "v"},
               "priority": 0, "wait_seconds": 0})
    };
    let cases = [
        ("/command", json!(vec!["x"; 257]), "command"),
        ("/command", json!(["x".repeat(70_000)]), "command"),
        ("/command", json!([""]), "command[0]"),
        ("/command", json!(["x", "a\0b"]), "command[1]"),
        ("/env/A", json!("x".repeat(70_000)), "env"),
        ("/env", json!({"": "x"}), "env"),
        ("/labels", json!({"": "x"}), "labels"),
        ("/labels/k", json!("x".repeat(257)), "labels.k"),
        ("/priority", json!(1001), "priority"),
        ("/priority", json!(-1001), "priority"),
        ("/wait_seconds", json!(601), "wait_seconds"),
    ];
    for (pointer, value, field) in cases {
        assert_eq!(about::<CreateSandbox>(with(base(), pointer, value)).0, field, "{pointer}");
    }
    let many: std::collections::BTreeMap<String, String> =
        (0..300).map(|at| (format!("k{at}"), String::new())).collect();
    assert_eq!(about::<CreateSandbox>(with(base(), "/env", json!(many))).0, "env");
    assert_eq!(about::<CreateSandbox>(with(base(), "/labels", json!(many))).0, "labels");
}

#[test]
fn a_record_has_no_environment_and_tolerates_what_is_new() {
    let text = json!({
        "id": sbx(1), "tenant": "default", "template": "shell", "status": "running",
        "reason": null, "pool": "local", "host": "host-1", "memory_mib": 512, "vcpus": 1,
        "stateful": false, "charge_mib": 512, "resident_mib": 41, "measured": true,
        "slot_released": false, "priority": 0, "preemptible": true, "idled": false,
        "resume_requested_at": null, "created_at": "2026-09-08T11:04:22Z",
        "started_at": "2026-09-08T11:04:22Z", "last_active_at": "2026-09-08T11:04:22Z",
        "decision_id": null, "tomorrow": {}
    });
    let record: Sandbox = serde_json::from_value(text).unwrap();
    let written = serde_json::to_value(&record).unwrap();
    assert!(written.get("env").is_none());
    assert_eq!(written["created_at"], "2026-09-08T11:04:22.000Z");
    assert_eq!(record.status, SandboxStatus::Running);
}

#[test]
fn exec_needs_a_program() {
    assert_eq!(about::<ExecRequest>(json!({"command": []})).0, "command");
    assert_eq!(
        about::<ExecRequest>(json!({"command": ["a"], "timeout_seconds": 0})).0,
        "timeout_seconds"
    );
    assert_eq!(taken::<ExecRequest>(json!({"command": ["a"]})).timeout_seconds, 60);
}

#[test]
fn output_is_cut_between_characters_and_says_so() {
    let of = |tail: &str, bytes_max| SandboxLogs::of(SandboxId(1), tail.as_bytes(), bytes_max);
    assert_eq!((of("abc", 3).output.as_str(), of("abc", 3).truncated), ("abc", false));
    assert_eq!((of("abc", 2).output.as_str(), of("abc", 2).truncated), ("bc", true));
    assert_eq!(of("a\u{20ac}b", 3).output, "b");
    assert_eq!(of("a\u{20ac}b", 4).output, "\u{20ac}b");
    assert_eq!(SandboxLogs::of(SandboxId(1), b"a\xff\n", 9).output, "a\u{fffd}\n");
    survives(&of("abc", 2));
    let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    assert_eq!(LogsQuery::from_pairs(&[]).unwrap().bytes, 65_536);
    assert_eq!(LogsQuery::from_pairs(&LogsQuery { bytes: 7 }.to_pairs()).unwrap().bytes, 7);
    for bad in ["0", "524289", "-1", "1.5", "", "all", "99999999999999999999"] {
        let error = LogsQuery::from_pairs(&pair("bytes", bad)).unwrap_err();
        assert_eq!(
            (error.field.as_str(), error.bound.as_str()),
            ("bytes", "an integer from 1 to 524288")
        );
    }
    assert_eq!(LogsQuery::from_pairs(&pair("lines", "1")).unwrap_err().field, "lines");
}
