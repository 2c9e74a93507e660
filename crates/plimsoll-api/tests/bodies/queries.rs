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
