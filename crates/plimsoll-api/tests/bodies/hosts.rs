use super::*;

fn beat() -> Value {
    json!({
        "boot_id": "b1", "incarnation": 3, "sequence": 41, "seen_through": 118,
        "heartbeat_at": "2026-09-08T11:04:22Z", "pool": "local", "region": "us-central1",
        "address": "http://127.0.0.1:7171", "labels": {},
        "cpu_millis_total": 16000, "cpu_millis_used": 4200,
        "memory_mib_total": 32768, "memory_mib_used": 4180,
        "memory_admission": "working-set", "memory_mib_admittable": 25600,
        "not_admitting": null, "starts_in_flight": 0, "starts_limit": 8,
        "counted": {"network_slots": 16290}, "stream_restore": true,
        "reservations": [ReservationId(5).to_string()],
        "guests": [{"id": sbx(1), "status": "running", "memory_mib": 4096,
                    "resident_mib": 310, "charge_mib": 1024, "measured": true,
                    "cpu_millis_total_used": 91000, "egress_bytes_total": 0,
                    "last_active_at": "2026-09-08T11:04:20Z"}],
        "complete": true
    })
}

fn defaults() -> HeartbeatDefaults {
    let pool = PoolName::new("local").unwrap();
    HeartbeatDefaults { pool, received_at: Timestamp(77) }
}

fn report(body: Value) -> HostReport {
    let body: Heartbeat = serde_json::from_value(body).unwrap();
    body.into_report(HostId::new("host-1").unwrap(), &defaults()).unwrap()
}

#[test]
fn the_contracts_heartbeat_becomes_a_report_and_back() {
    let report = report(beat());
    assert_eq!(report.memory_mib_admittable, Some(25600));
    assert_eq!(report.memory_admission, Some(Regime::WorkingSet));
    assert_eq!(report.drivers, DriverSet::ALL);
    assert_eq!(report.reservations, [ReservationId(5)]);
    assert_eq!(report.guests[0].id, ClaimId::Sandbox(SandboxId(1)));
    assert_eq!(report.guests[0].attempt, 1);
    assert!(report.complete && report.guests[0].measured);
    let body = Heartbeat::from(report.clone());
    let text = serde_json::to_vec(&body).unwrap();
    let again: Heartbeat = parse(&text).unwrap();
    let again = again.into_report(report.host.clone(), &defaults()).unwrap();
    assert_eq!(again, report);
}

#[test]
fn a_host_without_our_agent_may_leave_out_what_it_cannot_know() {
    let report = report(json!({
        "boot_id": "b", "sequence": 1, "memory_mib_total": 1024,
        "a_field_of_tomorrow": {"x": 1},
        "guests": [{"id": ReservationId(5).to_string(), "status": "running",
                    "memory_mib": 512, "another": true}],
    }));
    assert_eq!(report.incarnation, None);
    assert_eq!(report.seen_through, None);
    assert_eq!(report.pool.as_str(), "local");
    assert_eq!(report.heartbeat_at, Timestamp(77));
    assert_eq!(report.address, None);
    assert_eq!(report.starts_limit, None);
    assert!(!report.complete, "what is not said to be whole releases nothing");
    assert_eq!(report.memory_mib_admittable, None);
    assert_eq!(report.not_admitting.as_deref(), Some("unknown"));
    let guest = &report.guests[0];
    assert_eq!(guest.id, ClaimId::Reservation(ReservationId(5)));
    assert_eq!((guest.charge_mib, guest.measured), (Mib(512), false));
}

#[test]
fn an_inventory_without_a_list_is_none() {
    let mut body = beat();
    body.as_object_mut().unwrap().remove("guests");
    assert!(!report(body).complete);
    assert!(report(with(beat(), "/guests", json!([]))).complete);
}

#[test]
fn a_reason_shuts_whatever_the_number_says() {
    let shut = report(with(beat(), "/not_admitting", json!("pressure")));
    assert_eq!(shut.memory_mib_admittable, None);
    assert_eq!(shut.not_admitting.as_deref(), Some("pressure"));
    let zero = report(with(beat(), "/memory_mib_admittable", json!(0)));
    assert_eq!((zero.memory_mib_admittable, zero.not_admitting), (Some(0), None));
    let below = report(with(beat(), "/memory_mib_admittable", json!(-300)));
    assert_eq!(below.memory_mib_admittable, Some(-300));
}

#[test]
fn more_admittable_than_there_is_is_refused_by_name() {
    let (field, bound) = about::<Heartbeat>(with(beat(), "/memory_mib_admittable", json!(32769)));
    assert_eq!(
        (field.as_str(), bound.as_str()),
        ("memory_mib_admittable", "at most memory_mib_total, 32768")
    );
    // An agent may offer less than its machine has: the machine's use is then no error.
    assert!(take::<Heartbeat>(with(beat(), "/memory_mib_used", json!(40000))).is_ok());
}

#[test]
fn every_figure_out_of_its_bound_is_refused_by_name() {
    let cases = [
        ("/boot_id", json!("")),
        ("/sequence", json!(-1)),
        ("/sequence", json!(1_u64 << 53)),
        ("/sequence", json!(i64::MAX)),
        ("/sequence", json!(u64::MAX)),
        ("/incarnation", json!(-1)),
        ("/incarnation", json!(i64::MAX)),
        ("/seen_through", json!(-1)),
        ("/seen_through", json!(1_u64 << 53)),
        ("/starts_in_flight", json!(-1)),
        ("/starts_in_flight", json!(1_000_001)),
        ("/memory_mib_total", json!((1 << 30) + 1)),
        ("/memory_mib_used", json!(-1)),
        ("/memory_mib_admittable", json!(i64::MIN)),
        ("/memory_mib_admittable", json!(-(1 << 30) - 1)),
        ("/cpu_millis_total", json!(-1)),
        ("/cpu_millis_total", json!(65_536_001)),
        ("/memory_mib_total", json!(0)),
        ("/memory_mib_total", json!(-5)),
        ("/memory_mib_total", json!(1.5)),
        ("/memory_mib_total", json!("32768")),
        ("/memory_mib_admittable", json!(1.5)),
        ("/memory_mib_admittable", json!("NaN")),
        ("/cpu_millis_used", json!(-1)),
        ("/starts_limit", json!(0)),
        ("/memory_admission", json!("best-effort")),
        ("/address", json!("127.0.0.1:7171")),
        ("/address", json!("http://user@host")),
        ("/pool", json!("a b")),
        ("/heartbeat_at", json!(1_788_865_462)),
    ];
    for (pointer, value) in cases {
        let (field, _) = about::<Heartbeat>(with(beat(), pointer, value.clone()));
        assert_eq!(format!("/{field}"), pointer, "{value}");
    }
    for (pointer, value) in [
        ("/guests/0/memory_mib", json!(0)),
        ("/guests/0/status", json!("up")),
        ("/guests/0/resident_mib", json!(-1)),
        ("/guests/0/charge_mib", json!(-1)),
        ("/guests/0/charge_mib", json!(u64::MAX)),
        ("/guests/0/cpu_millis_total_used", json!(-1)),
        ("/guests/0/cpu_millis_total_used", json!(i64::MAX)),
        ("/guests/0/egress_bytes_total", json!(1_u64 << 53)),
        ("/guests/0/last_active_at", json!("soon")),
    ] {
        let (field, _) = about::<Heartbeat>(with(beat(), pointer, value));
        assert_eq!(field, pointer.replace("/guests/0/", "guests[0]."));
    }
    for (field, value) in [
        ("uptime_millis", json!(u64::MAX)),
        ("pressure_bp", json!(10_001)),
        ("guests[0].attempt", json!(0)),
        ("guests[0].attempt", json!(1_u64 << 32)),
        ("guests[0].exit_code", json!(1_u64 << 31)),
    ] {
        let mut body = beat();
        match field.strip_prefix("guests[0].") {
            Some(name) => body["guests"][0][name] = value,
            None => body[field] = value,
        }
        assert_eq!(about::<Heartbeat>(body).0, field);
    }
    let mut body = beat();
    body["ended"] = json!([{"id": sbx(2), "cpu_millis_total_used": -1}]);
    assert_eq!(about::<Heartbeat>(body).0, "ended[0].cpu_millis_total_used");
    let mut body = beat();
    body["drivers"] = json!(["x".repeat(64)]);
    assert_eq!(about::<Heartbeat>(body).0, "drivers[0]");
    let (field, bound) = about::<Heartbeat>(with(beat(), "/sequence", json!(i64::MAX)));
    assert_eq!(
        (field.as_str(), bound.as_str()),
        ("sequence", "an integer from 0 to 9007199254740991")
    );
    let (field, _) = about::<Heartbeat>(with(beat(), "/counted", json!({"gpu": -1})));
    assert_eq!(field, "counted.gpu");
}

#[test]
fn doubles_are_refused_and_strangers_set_apart() {
    let guest = |id: &str| json!({"id": id, "status": "running", "memory_mib": 1});
    let twice = json!([guest(&sbx(1)), guest(&sbx(2)), guest(&sbx(1))]);
    assert_eq!(about::<Heartbeat>(with(beat(), "/guests", twice)).0, "guests[2].id");
    let strangers = json!([guest("web-1"), guest(&sbx(1)), guest("sbx_short")]);
    let report = report(with(beat(), "/guests", strangers));
    assert_eq!(report.guests.len(), 1);
    assert_eq!(report.foreign_guests, ["web-1", "sbx_short"]);
    let body = Heartbeat::from(report.clone());
    let again = body.into_report(report.host.clone(), &defaults()).unwrap();
    assert_eq!(again.foreign_guests, report.foreign_guests);
}

#[test]
fn drivers_are_a_set_and_unknown_ones_passed_over() {
    let mut body = beat();
    body["drivers"] = json!(["gvisor", "unikernel"]);
    let report = report(body);
    assert!(report.drivers.has(Driver::Gvisor) && !report.drivers.has(Driver::Process));
    assert_eq!(Heartbeat::from(report).drivers, Some(vec!["gvisor".to_owned()]));
}

#[test]
fn registration_checks_what_it_will_use() {
    let body: RegisterHost = taken(json!({
        "boot_id": "b", "address": "https://10.0.0.1:7171", "pool": "local", "protocol": 1,
        "secret": "hush", "tomorrow": 1
    }));
    assert!(!format!("{body:?}").contains("hush"));
    let (field, _) = about::<RegisterHost>(json!({"boot_id": "b", "address": "localhost"}));
    assert_eq!(field, "address");
    let error = take::<RegisterHost>(json!({"boot_id": "b", "secret": "hu sh"})).unwrap_err();
    assert_eq!(error.field, "secret");
    assert!(!error.to_string().contains("hu sh"));
}

#[test]
fn commands_belong_to_their_routes() {
    let id = SandboxId(3);
    let end = EndGuest {
        fence: Fence { epoch: 2, number: 9 },
        deadline_uptime_millis: Some(5),
        attempt: 1,
    };
    let command = end.into_command(id);
    assert_eq!(EndGuest::from_command(&command), Some(end));
    assert_eq!(EndGuest::from_pairs(&end.to_pairs()), Ok(end));
    assert_eq!(EndGuest::from_pairs(&[]).unwrap_err().field, "attempt");
    assert!(check_command(&command, "end", Some(id)).is_ok());
    assert_eq!(check_command(&command, "stop", Some(id)).unwrap_err().field, "op");
    let other = Some(SandboxId(4));
    assert_eq!(check_command(&command, "end", other).unwrap_err().field, "id");
    let text = serde_json::to_value(&HostCommand {
        fence: Fence::default(),
        deadline_uptime_millis: None,
        op: HostOp::Resume { id, attempt: 0 },
    });
    assert_eq!(about::<HostCommand>(text.unwrap()).0, "attempt");
}

#[test]
fn outcomes_have_the_status_of_their_code() {
    let refused = |code| HostOutcome::Refused { code, detail: String::new() };
    assert_eq!(outcome_status(&HostOutcome::Done), 200);
    assert_eq!(outcome_status(&refused(RefusalCode::HostStartsSaturated)), 503);
    assert_eq!(outcome_status(&refused(RefusalCode::NotFound)), 404);
    assert_eq!(outcome_status(&HostOutcome::Failed { detail: String::new() }), 502);
    assert_eq!(outcome_status(&HostOutcome::Fenced { highest: Fence::default() }), 409);
}
