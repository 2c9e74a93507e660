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
        assert!(event.about().ends_with('.') && !event.about().contains("  "), "{event}");
    }
    for event in EventType::ALL {
        let fleet = ["host", "policy", "rollout", "key"];
        let subject = event.as_str().split('.').next().unwrap();
        // What is known of a tenant that the tenant is not told.
        let about =
            ["abuse.suspected", "quota.unnotified", "quota.plan_unknown", "quota.corrected"];
        let operators = fleet.contains(&subject) || about.contains(&event.as_str());
        assert_eq!(event.is_operators(), operators, "{event}");
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
