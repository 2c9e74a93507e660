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

/// serde would take a list for an object, by position: a limit that nobody has named.
#[test]
fn lists_are_taken_for_no_object() {
    fn refused<T: Body + std::fmt::Debug>(text: &str) -> String {
        let error = parse::<T>(text.as_bytes()).unwrap_err();
        assert_eq!((error.given.as_str(), error.bound.as_str()), ("a list", "an object"), "{text}");
        error.field
    }
    assert_eq!(refused::<Plan>(r#"{"id": "p", "concurrency": []}"#), "concurrency");
    let text = r#"{"id": "p", "concurrency": {"vcpus": {"limit": 1}, "sandboxes" :\n [5, 10]}}"#;
    assert_eq!(refused::<Plan>(&text.replace("\\n", "\n")), "concurrency.sandboxes");
    assert_eq!(refused::<LimitsPatch>(r#"{"rate": [[3]]}"#), "rate");
    let text = r#"{"id": "t", "overrides": {"consumption": {"cpu_seconds": [7]}}}"#;
    assert_eq!(refused::<CreateTenant>(text), "overrides.consumption.cpu_seconds");
    assert_eq!(refused::<Pool>(r#"{"name": "p", "preemption": ["idle"]}"#), "preemption");
    assert_eq!(refused::<PoolPatch>(r#"{"lifecycle": [60]}"#), "lifecycle");
    assert_eq!(refused::<CreateSandbox>(r#"{"template": "a", "lifecycle": []}"#), "lifecycle");
    // Lists where lists belong, and texts that look like fields, are none of these.
    let fine = r#"{"template": "a", "command": ["lifecycle", "[", "\"lifecycle\":["]}"#;
    assert!(parse::<CreateSandbox>(fine.as_bytes()).is_ok());
    assert!(parse::<Pool>(br#"{"name": "lifecycle", "overflow": ["reserve"]}"#).is_ok());
}
