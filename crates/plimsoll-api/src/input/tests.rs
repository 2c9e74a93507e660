use super::*;
use crate::{
    CreateSandbox, Heartbeat, PatchSandbox, Plan, Pool, ReservationBatch, ReserveRequest, Template,
};

fn refused<T: Body>(body: &str) -> FieldError {
    match parse::<T>(body.as_bytes()) {
        Ok(_) => panic!("taken: {body}"),
        Err(error) => error,
    }
}

fn about<T: Body>(body: &str) -> (String, String) {
    let error = refused::<T>(body);
    (error.field, error.bound)
}

#[test]
fn every_kind_of_bad_size_names_the_field_and_the_bound() {
    let memory = ("memory_mib".to_owned(), "an integer from 1 to 16777216".to_owned());
    for value in
        ["0", "-1", "1.5", "1e9", "\"512\"", "16777217", "99999999999999999999", "[]", "{}", "true"]
    {
        let body = format!(r#"{{"template": "shell", "memory_mib": {value}, "vcpus": 1}}"#);
        assert_eq!(about::<CreateSandbox>(&body), memory, "{value}");
        let body = format!(r#"{{"key": "k", "vcpus": 1, "memory_mib": {value}}}"#);
        assert_eq!(about::<ReserveRequest>(&body), memory, "{value}");
    }
    let given = refused::<CreateSandbox>(r#"{"template": "shell", "memory_mib": 1.5}"#).given;
    assert_eq!(given, "1.5");
    let (field, bound) = about::<CreateSandbox>(r#"{"template": "shell", "vcpus": 4097}"#);
    assert_eq!((field.as_str(), bound.as_str()), ("vcpus", "an integer from 1 to 4096"));
}

#[test]
fn unknown_missing_and_double_fields_are_named() {
    assert_eq!(about::<CreateSandbox>(r#"{"template": "a", "memroy": 1}"#).0, "memroy");
    assert_eq!(about::<CreateSandbox>("{}").0, "template");
    assert_eq!(about::<ReserveRequest>(r#"{"key": "k", "vcpus": 1}"#).0, "memory_mib");
    assert_eq!(about::<CreateSandbox>(r#"{"template": "a", "template": "b"}"#).0, "template");
    let body =
        r#"{"items": [{"key": "a", "memory_mib": 1, "vcpus": 1}, {"key": "b", "vcpus": 1}]}"#;
    assert_eq!(about::<ReservationBatch>(body).0, "items[1].memory_mib");
    let body = r#"{"template": "a", "lifecycle": {"idle": 60}}"#;
    assert_eq!(about::<CreateSandbox>(body).0, "lifecycle.idle");
    let body = r#"{"items": [{"key": "a", "memory_mib": 1, "vcpus": 1, "x": {"y": 2}}]}"#;
    assert_eq!(about::<ReservationBatch>(body).0, "items[0].x");
}

#[test]
fn deep_values_are_named_by_their_path() {
    let body = r#"{"items": [{"key": "a", "memory_mib": 1, "vcpus": 1},
                             {"key": "b", "memory_mib": 1, "vcpus": 0.5}]}"#;
    assert_eq!(about::<ReservationBatch>(body).0, "items[1].vcpus");
    let body = r#"{"id": "p", "concurrency": {"vcpus": {"limit": -3}}}"#;
    let (field, bound) = about::<Plan>(body);
    assert_eq!(field, "concurrency.vcpus.limit");
    assert!(bound.starts_with("an integer from 0 to "), "{bound}");
    let body = r#"{"name": "p", "reserve": {"fraction_bp": 10001}}"#;
    assert_eq!(about::<Pool>(body).0, "reserve.fraction_bp");
    let body = r#"{"name": "t", "driver": "process", "memory_mib": 1, "counted": {"gpu": -1}}"#;
    assert_eq!(about::<Template>(body).0, "counted.gpu");
}

#[test]
fn lifecycle_limits_are_off_or_at_least_a_minute() {
    for value in ["0", "59", "-2", "1.5", "\"60\"", "315360001"] {
        let lifecycle = format!(r#"{{"max_run_seconds": {value}}}"#);
        let expected = ("lifecycle.max_run_seconds".to_owned(), LIFECYCLE_BOUND.to_string());
        let body = format!(r#"{{"template": "a", "lifecycle": {lifecycle}}}"#);
        assert_eq!(about::<CreateSandbox>(&body), expected, "{value}");
        let body = format!(r#"{{"lifecycle": {lifecycle}}}"#);
        assert_eq!(about::<PatchSandbox>(&body), expected, "{value}");
    }
    let body = r#"{"template": "a", "lifecycle": {"max_run_seconds": 60, "ttl_seconds": -1}}"#;
    assert!(parse::<CreateSandbox>(body.as_bytes()).is_ok());
}

#[test]
fn words_and_names_say_what_is_allowed() {
    let (field, bound) = about::<CreateSandbox>(r#"{"template": "a", "on_full": "explode"}"#);
    assert_eq!((field.as_str(), bound.as_str()), ("on_full", "one of reject, queue"));
    let (field, bound) = about::<CreateSandbox>(r#"{"template": "a b"}"#);
    assert_eq!(field, "template");
    assert!(bound.starts_with("1 to 63 of a-z"), "{bound}");
    assert_eq!(
        about::<Heartbeat>(r#"{"boot_id": "b", "guests": [{"id": "x", "status": "up"}]}"#).0,
        "guests[0].status"
    );
}

#[test]
fn bounds_speak_of_json_and_not_of_types() {
    let beat = |protocol: &str, guests: &str| {
        let body = format!(
            r#"{{"boot_id": "b", "memory_mib_total": 1, "sequence": 1, "protocol": {protocol},
                "guests": {guests}}}"#
        );
        about::<Heartbeat>(&body)
    };
    assert_eq!(beat("-1", "[]"), ("protocol".into(), "an integer of at least 0".into()));
    assert_eq!(beat("1", "{}"), ("guests".into(), "a list".into()));
    assert_eq!(beat("1", "[7]"), ("guests[0]".into(), "an object".into()));
    let body = r#"{"key": "k", "memory_mib": 1, "vcpus": 1, "mode": "maybe"}"#;
    assert_eq!(
        about::<ReserveRequest>(body),
        ("mode".into(), "one of reject, wait, dry_run".into())
    );
    let body = r#"{"template": "a", "labels": ["x"]}"#;
    assert_eq!(about::<CreateSandbox>(body), ("labels".into(), "an object".into()));
}

#[test]
fn a_field_of_a_tagged_body_is_not_guessed() {
    let body = r#"{"fence": {"epoch": 1, "number": 1}, "op": "resume", "attempt": -1,
                   "id": "sbx_00000000000000000000000001", "deadline_uptime_millis": 5}"#;
    let error = refused::<plimsoll_types::HostCommand>(body);
    assert_eq!((error.field.as_str(), error.bound.as_str()), ("body", "an integer of at least 0"));
}

#[test]
fn environment_values_reach_no_error() {
    for env in [
        r#"{"TOKEN": 12345678}"#,
        r#"{"TOKEN": ["hunter2"]}"#,
        r#"{"TOKEN": "hunter2\u0000"}"#,
        r#"{"TO=KEN": "hunter2"}"#,
        r#""hunter2""#,
    ] {
        let body = format!(r#"{{"template": "a", "env": {env}}}"#);
        let error = refused::<CreateSandbox>(&body);
        let text = format!("{error} {error:?}");
        assert!(error.field.starts_with("env"), "{text}");
        assert!(!text.contains("hunter2") && !text.contains("12345678"), "{text}");
    }
    let body = br#"{"template": "a", "env": {"TOKEN": "hunter2"}}"#;
    let body: CreateSandbox = parse(body).unwrap();
    assert!(!format!("{body:?}").contains("hunter2"));
    assert!(format!("{body:?}").contains("TOKEN"));
}

#[test]
fn what_is_no_json_is_told_apart() {
    for body in ["", "{", r#"{"template": "a""#, r#"{"template": }"#, "nonsense"] {
        let error = refused::<CreateSandbox>(body);
        assert!(error.bound.starts_with("JSON ("), "{body}: {error}");
    }
    for body in ["[]", r#" ["shell", 512]"#, "7", "null"] {
        let error = refused::<CreateSandbox>(body);
        assert_eq!(error.field, "body", "{body}: {error}");
    }
}

#[test]
fn bodies_may_be_left_out_where_all_is_optional() {
    assert_eq!(parse_or_default(b" \n"), Ok(crate::CommitReservation::default()));
    assert_eq!(parse_or_default(b" null\n"), Ok(crate::CommitReservation::default()));
    assert!(crate::parse::<crate::CommitReservation>(b"null").is_err());
    assert!(parse_or_default::<crate::CommitReservation>(b"{\"cgroup\": 1}").is_err());
}

#[test]
fn keys_are_visible_ascii() {
    assert!(check_idempotency_key("a-1").is_ok());
    assert!(check_idempotency_key(&"k".repeat(255)).is_ok());
    for key in ["", "a b", "é", "a\n", &"k".repeat(256)] {
        let error = check_idempotency_key(key).unwrap_err();
        assert_eq!(error.field, "Idempotency-Key");
        assert!(error.bound.contains("255"));
    }
    assert_eq!(about::<ReserveRequest>(r#"{"key": "", "memory_mib": 1, "vcpus": 1}"#).0, "key");
}

#[test]
fn long_values_are_cut_in_errors() {
    let long = "é".repeat(500);
    let error = FieldError::new("labels", &long, "less");
    assert_eq!(error.given.chars().count(), GIVEN_LENGTH_MAX + 3);
    let body = format!(r#"{{"template": "a", "{long}": 1}}"#);
    let error = refused::<CreateSandbox>(&body);
    assert_eq!(error.field.chars().count(), FIELD_LENGTH_MAX + 3);
}
