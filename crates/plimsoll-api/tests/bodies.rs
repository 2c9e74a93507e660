//! Bodies as the contract writes them, and what is made of them.
#![allow(clippy::unwrap_used, reason = "helpers of tests stop where a test cannot go on")]

use plimsoll_api::*;
use plimsoll_types::{
    ClaimId, Criticality, Driver, DriverSet, Fence, HostCommand, HostId, HostOp, HostOutcome,
    HostReport, Mib, PlanId, PoolName, RefusalCode, Regime, ReservationId, SandboxId,
    SandboxStatus, TenantId, Timestamp,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn take<T: Body>(body: Value) -> Result<T, FieldError> {
    parse(&serde_json::to_vec(&body).unwrap())
}

fn taken<T: Body>(body: Value) -> T {
    take(body).unwrap()
}

fn about<T: Body + std::fmt::Debug>(body: Value) -> (String, String) {
    let error = take::<T>(body).unwrap_err();
    (error.field, error.bound)
}

/// A copy of `body` with one member set.
fn with(mut body: Value, pointer: &str, value: Value) -> Value {
    *body.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
    body
}

fn sbx(number: u128) -> String {
    SandboxId(number).to_string()
}

mod sandboxes {
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
}

mod reservations {
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
}

mod hosts {
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
        let (field, bound) =
            about::<Heartbeat>(with(beat(), "/memory_mib_admittable", json!(32769)));
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
        ] {
            let (field, _) = about::<Heartbeat>(with(beat(), pointer, value));
            assert_eq!(field, pointer.replace("/guests/0/", "guests[0]."));
        }
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
}

mod operators {
    use super::*;

    fn plan() -> Plan {
        taken(json!({
            "id": "pro",
            "concurrency": {"sandboxes": {"limit": 10, "burst_limit": 30}, "vcpus": {"limit": 8}},
            "consumption": {"cpu_seconds": {"limit": 3600}},
            "rate": {"creates_per_minute": {"limit": 60}}
        }))
    }

    #[test]
    fn what_a_plan_does_not_limit_is_unlimited() {
        let plan = plan();
        assert_eq!(plan.concurrency.memory_mib, BurstLimit::default());
        assert_eq!(plan.concurrency.vcpus.burst_limit, None);
        let text = serde_json::to_value(&plan).unwrap();
        assert!(text["concurrency"].get("memory_mib").is_none());
        assert_eq!(taken::<Plan>(text), plan);
        let empty: Plan = taken(json!({"id": "free"}));
        assert_eq!(empty.limits(), Limits::default());
    }

    #[test]
    fn a_burst_is_no_lower_than_what_it_exceeds() {
        let (field, bound) = about::<Plan>(json!({
            "id": "p", "concurrency": {"vcpus": {"limit": 8, "burst_limit": 7}}
        }));
        assert_eq!(
            (field.as_str(), bound.as_str()),
            ("concurrency.vcpus.burst_limit", "at least the limit, 8")
        );
        let (field, _) =
            about::<Plan>(json!({"id": "p", "concurrency": {"vcpus": {"burst_limit": 7}}}));
        assert_eq!(field, "concurrency.vcpus.burst_limit");
        let (field, _) = about::<Plan>(json!({"id": "p", "rate": {"deploys_per_day": {}}}));
        assert_eq!(field, "rate.deploys_per_day");
    }

    #[test]
    fn a_patch_keeps_clears_and_sets() {
        let mut limits = plan().limits();
        let patch: LimitsPatch = taken(json!({
            "concurrency": {"sandboxes": {"limit": 5}, "vcpus": null},
            "rate": {"creates_per_hour": {"limit": 100}}
        }));
        patch.apply(&mut limits);
        assert_eq!(limits.concurrency.sandboxes, BurstLimit { limit: Some(5), burst_limit: None });
        assert_eq!(limits.concurrency.vcpus, BurstLimit::default());
        assert_eq!(limits.consumption, plan().consumption);
        assert_eq!(limits.rate.creates_per_minute.limit, Some(60));
        assert_eq!(limits.rate.creates_per_hour.limit, Some(100));
        let text = serde_json::to_value(LimitsPatch::default()).unwrap();
        assert_eq!(taken::<LimitsPatch>(text), LimitsPatch::default());
    }

    #[test]
    fn overrides_come_before_the_plan() {
        let overrides: Limits = taken(json!({"concurrency": {"sandboxes": {"limit": 99}}}));
        let limits = overrides.or(&plan().limits());
        assert_eq!(limits.concurrency.sandboxes.limit, Some(99));
        assert_eq!(limits.concurrency.sandboxes.burst_limit, None);
        assert_eq!(limits.concurrency.vcpus.limit, Some(8));
    }

    #[test]
    fn tenants_change_field_by_field() {
        let mut tenant = Tenant {
            id: TenantId::new("acme").unwrap(),
            plan: PlanId::new("free").unwrap(),
            payment_method: false,
            created_at: Time(Timestamp(0)),
            overrides: Limits::default(),
            suspended: false,
            suspended_reason: None,
            period_anchor_day: Some(31),
        };
        let patch: TenantPatch = taken(json!({
            "plan": "pro", "suspended": true, "suspended_reason": "unpaid",
            "period_anchor_day": null, "overrides": {"rate": {"forks_per_hour": {"limit": 1}}}
        }));
        patch.apply(&mut tenant);
        assert_eq!(tenant.plan.as_str(), "pro");
        assert_eq!(tenant.suspended_reason.as_deref(), Some("unpaid"));
        assert_eq!(tenant.period_anchor_day, None);
        assert_eq!(tenant.overrides.rate.forks_per_hour.limit, Some(1));
        taken::<TenantPatch>(json!({"suspended": false})).apply(&mut tenant);
        assert_eq!((tenant.suspended, tenant.suspended_reason), (false, None));
        let (field, _) = about::<TenantPatch>(json!({"period_anchor_day": 32}));
        assert_eq!(field, "period_anchor_day");
        let (field, _) = about::<CreateTenant>(
            json!({"id": "a", "overrides": {"concurrency": {"vcpus": {"limit": -1}}}}),
        );
        assert_eq!(field, "overrides.concurrency.vcpus.limit");
    }

    #[test]
    fn keys_speak_for_what_their_role_needs() {
        assert!(take::<CreateKey>(json!({"role": "operator"})).is_ok());
        assert!(take::<CreateKey>(json!({"role": "host"})).is_ok());
        assert!(take::<CreateKey>(json!({"role": "tenant", "tenant": "a", "host": null})).is_ok());
        assert_eq!(about::<CreateKey>(json!({"role": "tenant"})).0, "tenant");
        assert_eq!(about::<CreateKey>(json!({"role": "operator", "host": "h"})).0, "host");
        assert_eq!(about::<CreateKey>(json!({"role": "host", "tenant": "a"})).0, "tenant");
        assert_eq!(about::<CreateKey>(json!({"role": "root"})).0, "role");
    }

    #[test]
    fn the_contracts_pool_is_taken_and_the_rest_has_defaults() {
        let pool: Pool = taken(json!({
            "name": "local", "limit": 4, "regime": "committed", "pause": "checkpoint",
            "preemption": {"mode": "idle", "idle_seconds": 60, "min_run_seconds": 600},
            "placement": "pack", "overflow": ["external-a"], "external": false,
            "reserve": {"floor_mib": 512, "fraction_bp": 2500, "ttl_seconds": 60}
        }));
        assert_eq!((pool.limit, pool.stale_seconds, pool.dead_seconds), (Some(4), 30, 120));
        let least: Pool = taken(json!({"name": "local"}));
        assert_eq!(least, Pool::new(PoolName::new("local").unwrap()));
        let text = serde_json::to_value(&pool).unwrap();
        assert_eq!(taken::<Pool>(text), pool);
    }

    #[test]
    fn a_pool_is_judged_as_a_whole() {
        let pool = Pool::new(PoolName::new("local").unwrap());
        let changed = |body: Value| taken::<PoolPatch>(body).apply(&pool);
        let patched = changed(json!({
            "limit": 4, "preemption": {"mode": "lru"}, "lifecycle": {"ttl_seconds": 60}
        }));
        let patched = patched.unwrap();
        assert_eq!((patched.limit, patched.lifecycle.ttl_seconds), (Some(4), Some(60)));
        let again: PoolPatch = taken(json!({"limit": null}));
        let again = again.apply(&patched).unwrap();
        assert_eq!((again.limit, again.lifecycle.ttl_seconds), (None, Some(60)));
        for (body, field) in [
            (json!({"dead_seconds": 29}), "dead_seconds"),
            (json!({"overflow": ["a", "local"]}), "overflow[1]"),
            (json!({"reserve": {"ttl_seconds": 0}}), "reserve.ttl_seconds"),
            (json!({"preemption": {"idle_seconds": 0}}), "preemption.idle_seconds"),
            (json!({"lifecycle": {"ttl_seconds": 59}}), "lifecycle.ttl_seconds"),
            (json!({"max_vcpu_ratio_bp": 0}), "max_vcpu_ratio_bp"),
        ] {
            assert_eq!(changed(body).unwrap_err().field, field);
        }
    }

    #[test]
    fn templates_change_and_hide_their_environment() {
        let template: Template = taken(json!({
            "name": "shell", "driver": "process", "memory_mib": 512, "env": {"TOKEN": "hunter2"}
        }));
        assert_eq!(template.vcpus, 1);
        assert!(!format!("{template:?}").contains("hunter2"));
        let patch: TemplatePatch = taken(json!({"memory_mib": 1024, "pool": "a", "rootfs": null}));
        let changed = patch.apply(&template).unwrap();
        assert_eq!((changed.memory_mib, changed.env), (1024, template.env.clone()));
        let large: TemplatePatch = taken(json!({"memory_mib": 16_777_216, "overhead_mib": 1}));
        assert_eq!(large.apply(&template).unwrap_err().field, "overhead_mib");
    }

    #[test]
    fn an_envelope_is_of_the_one_type() {
        let body = json!({
            "payloadType": DSSE_PAYLOAD_TYPE, "payload": "e30=",
            "signatures": [{"keyid": "a", "sig": "c2ln"}]
        });
        assert!(take::<Envelope>(body.clone()).is_ok());
        let cases = [
            ("/payloadType", json!("application/json"), "payloadType"),
            ("/signatures", json!([]), "signatures"),
            ("/payload", json!("x".repeat(POLICY_PAYLOAD_BYTES_MAX + 1)), "payload"),
        ];
        for (pointer, value, field) in cases {
            assert_eq!(about::<Envelope>(with(body.clone(), pointer, value)).0, field);
        }
    }
}

mod events {
    use super::*;

    #[test]
    fn endpoints_name_the_events_that_exist() {
        let body: CreateEndpoint = taken(json!({
            "url": "https://hooks.example.com/a", "events": ["quota.warning"], "description": "d"
        }));
        assert_eq!(body.events, [EventType::QuotaWarning]);
        let (field, bound) =
            about::<CreateEndpoint>(json!({"url": "https://a", "events": ["quota.warn"]}));
        assert_eq!(field, "events[0]");
        assert!(bound.starts_with("one of quota.warning, "), "{bound}");
        for url in ["", "ftp://a", "https://", "https:///a", "https://a b"] {
            assert_eq!(about::<CreateEndpoint>(json!({"url": url})).0, "url");
        }
    }

    #[test]
    fn every_type_survives_its_word() {
        for event in EventType::ALL {
            assert_eq!(event.as_str().parse(), Ok(*event));
        }
        for event in EventType::ALL {
            let fleet = ["host", "policy", "rollout"];
            let subject = event.as_str().split('.').next().unwrap();
            assert_eq!(event.is_operators(), fleet.contains(&subject), "{event}");
        }
    }

    #[test]
    fn secrets_are_written_once_and_never_printed() {
        let made = NewEndpoint {
            secret: Secret::new("whsec_x"),
            info: Endpoint {
                id: plimsoll_types::EndpointId(1),
                tenant: None,
                url: "https://a".into(),
                events: Vec::new(),
                description: String::new(),
                enabled: true,
                disabled_reason: None,
                failing_since: None,
                created_at: Time(Timestamp(0)),
            },
        };
        let text = serde_json::to_value(&made).unwrap();
        assert_eq!((&text["secret"], &text["url"]), (&json!("whsec_x"), &json!("https://a")));
        assert!(!format!("{made:?}").contains("whsec"));
        assert_eq!(serde_json::from_value::<NewEndpoint>(text).unwrap(), made);
    }
}

mod queries {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Pairs {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn queries_survive_their_pairs() {
        let sandboxes = pairs(&[
            ("limit", "5"),
            ("cursor", "c"),
            ("status", "paused"),
            ("status", "queued"),
            ("pool", "local"),
            ("label", "team:ci:x"),
            ("label", "a:b"),
        ]);
        let query = ListSandboxes::from_pairs(&sandboxes).unwrap();
        assert_eq!(query.labels[0], ("team".to_owned(), "ci:x".to_owned()));
        assert_eq!(query.to_pairs(), sandboxes);
        let usage = pairs(&[
            ("limit", "1000"),
            ("from", "2026-09-01T00:00:00.000Z"),
            ("to", "2026-10-01T00:00:00.000Z"),
            ("group_by", "sandbox"),
        ]);
        assert_eq!(UsageQuery::from_pairs(&usage).unwrap().to_pairs(), usage);
        let decisions = pairs(&[("tenant", "acme"), ("code", "no_capacity")]);
        assert_eq!(DecisionQuery::from_pairs(&decisions).unwrap().to_pairs(), decisions);
        let after = plimsoll_types::EventId(9).to_string();
        let events = pairs(&[("after", &after), ("type", "host.dead")]);
        assert_eq!(EventQuery::from_pairs(&events).unwrap().to_pairs(), events);
        assert_eq!(ListQuery::from_pairs(&[]).unwrap().limit(), 100);
        let wait = WaitQuery::default();
        assert_eq!(WaitQuery::from_pairs(&wait.to_pairs()), Ok(wait));
    }

    #[test]
    fn parameters_are_refused_by_name() {
        let sandboxes =
            |name, value| ListSandboxes::from_pairs(&pairs(&[(name, value)])).unwrap_err().field;
        assert_eq!(sandboxes("limit", "0"), "limit");
        assert_eq!(sandboxes("limit", "1001"), "limit");
        assert_eq!(sandboxes("limit", "-1"), "limit");
        assert_eq!(sandboxes("status", "up"), "status");
        assert_eq!(sandboxes("label", "novalue"), "label");
        assert_eq!(sandboxes("colour", "red"), "colour");
        let usage = pairs(&[("from", "2026-09-02T00:00:00Z"), ("to", "2026-09-01T00:00:00Z")]);
        assert_eq!(UsageQuery::from_pairs(&usage).unwrap_err().field, "to");
        let wait = pairs(&[("timeout_seconds", "601")]);
        assert_eq!(WaitQuery::from_pairs(&wait).unwrap_err().field, "timeout_seconds");
        let code = pairs(&[("code", "nope")]);
        assert_eq!(DecisionQuery::from_pairs(&code).unwrap_err().field, "code");
    }
}

/// Whatever is written is read back the same.
fn survives<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let text = serde_json::to_string(value).unwrap();
    assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value, "{text}");
}

#[test]
fn answers_survive_the_wire() {
    survives(&Page::whole(vec![1_u8]));
    survives(&StatusCounts::default());
    survives(&ExecResponse { exit_code: Some(-9), ..ExecResponse::default() });
    let quota: QuotaView = serde_json::from_value(json!({
        "period": "2026-09", "resets_at": "2026-10-01T00:00:00Z", "plan": "default", "state": "ok",
        "concurrency": {
            "sandboxes": {"used": 1, "limit": 10, "burst_limit": 30, "burst_seconds_left": 3600},
            "vcpus": {"used": 1, "limit": null, "burst_limit": null, "burst_seconds_left": null},
            "memory_mib": {"used": 512, "limit": null, "burst_limit": null,
                           "burst_seconds_left": null}
        },
        "consumption": {"cpu_seconds": {"used": 1, "limit": null},
                        "gib_hours": {"used": 0, "limit": 5},
                        "egress_bytes": {"used": 0, "limit": null}},
        "rate": {"creates_per_minute": {"left": 59, "limit": 60}},
        "top_consumers": [{"id": sbx(1), "cpu_seconds": 1, "gib_hours": 0}]
    }))
    .unwrap();
    assert_eq!(quota.rate["creates_per_minute"].left, Some(59));
    survives(&quota);
    let mut problem = Problem::new(RefusalCode::NoCapacity, "d");
    problem.counts = Some(plimsoll_types::FilterCounts::default());
    problem.known = vec!["a".into()];
    survives(&problem);
}
