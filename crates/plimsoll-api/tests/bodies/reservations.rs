use super::*;

#[test]
fn three_fields_make_a_reservation() {
    let body: ReserveRequest = taken(json!({"key": "k", "memory_mib": 512, "vcpus": 1}));
    assert_eq!(body, ReserveRequest::new("k", 512, 1));
    assert_eq!((body.mode, body.ttl_seconds, body.wait()), (ReserveMode::Reject, None, 0));
    let wait: ReserveRequest =
        taken(json!({"key": "k", "memory_mib": 512, "vcpus": 1, "mode": "wait"}));
    assert_eq!(wait.wait(), 60);
    for (field, value) in [("ttl_seconds", 0), ("ttl_seconds", 3601), ("wait_seconds", 601)] {
        let body = json!({"key": "k", "memory_mib": 1, "vcpus": 1, field: value});
        assert_eq!(about::<ReserveRequest>(body).0, field);
    }
}

#[test]
fn a_batch_is_whole_bounded_and_without_doubles() {
    let item = |key: &str| json!({"key": key, "memory_mib": 1, "vcpus": 1});
    let batch = |items: Vec<Value>| json!({"items": items});
    assert_eq!(about::<ReservationBatch>(batch(vec![])).0, "items");
    let many = (0..1001).map(|at| item(&at.to_string())).collect();
    assert_eq!(about::<ReservationBatch>(batch(many)).0, "items");
    let full = (0..1000).map(|at| item(&at.to_string())).collect();
    assert_eq!(taken::<ReservationBatch>(batch(full)).items.len(), 1000);
    let twice = batch(vec![item("a"), item("b"), item("a")]);
    assert_eq!(about::<ReservationBatch>(twice).0, "items[2].key");
    let waits = json!({"key": "b", "memory_mib": 1, "vcpus": 1, "mode": "wait"});
    assert_eq!(about::<ReservationBatch>(batch(vec![item("a"), waits])).0, "items[1].mode");
    let large = json!({"key": "b", "memory_mib": 0, "vcpus": 1});
    assert_eq!(about::<ReservationBatch>(batch(vec![large])).0, "items[0].memory_mib");
}

#[test]
fn a_control_group_does_not_climb() {
    assert!(take::<CommitReservation>(json!({"cgroup": "/vm.slice/a.scope"})).is_ok());
    for cgroup in ["", "../a", "/a/../../b", "a\0"] {
        assert_eq!(about::<CommitReservation>(json!({"cgroup": cgroup})).0, "cgroup");
    }
}

#[test]
fn explain_takes_either_body_and_names_its_fields() {
    let create = br#"{"template": "shell", "memory_mib": 1}"#;
    assert!(matches!(ExplainRequest::parse(create), Ok(ExplainRequest::Create(_))));
    let reserve = br#"{"key": "k", "memory_mib": 1, "vcpus": 1}"#;
    assert!(matches!(ExplainRequest::parse(reserve), Ok(ExplainRequest::Reserve(_))));
    let wrong = br#"{"template": "shell", "vcpus": 0.5}"#;
    assert_eq!(ExplainRequest::parse(wrong).unwrap_err().field, "vcpus");
    let wrong = br#"{"key": "k", "memory_mib": 1, "vcpus": 1, "x": 1}"#;
    assert_eq!(ExplainRequest::parse(wrong).unwrap_err().field, "x");
    assert_eq!(ExplainRequest::parse(b"{}").unwrap_err().field, "key");
}
