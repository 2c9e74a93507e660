//! Events: their order, and those about webhook endpoints.

use plimsoll_engine::Admin;
use plimsoll_engine::rows::{Change, EndpointRow, EventRow, Rows, SigningSecret};
use plimsoll_types::{EndpointId, EventId, Millis, Timestamp};

use crate::bed::{Bed, tenant};

fn endpoint(disabled: Option<&str>) -> EndpointRow {
    EndpointRow {
        id: EndpointId(7),
        tenant: Some(tenant("a")),
        url: "https://example.com/hook/token".to_owned(),
        events: Vec::new(),
        description: "on call".to_owned(),
        secrets: vec![SigningSecret { secret: "whsec_hush".to_owned(), valid_until: None }],
        disabled: disabled.map(str::to_owned),
        created_at: Timestamp(0),
        cursor: EventId(0),
        failing_since: None,
    }
}

fn events(bed: &Bed) -> Vec<&EventRow> {
    fn event(change: &Change) -> Option<&EventRow> {
        match change {
            Change::Event(row) => Some(row),
            _ => None,
        }
    }
    bed.changes.iter().filter_map(event).collect()
}

#[test]
fn an_endpoint_that_goes_off_is_told_of_once_without_its_url() {
    let mut bed = Bed::new();
    let before = events(&bed).len();
    for disabled in [None, Some("gone"), Some("gone"), None, Some("failing")] {
        bed.admin(Admin::PutEndpoint(endpoint(disabled)));
    }
    let told = &events(&bed)[before..];
    let reasons: Vec<_> = told.iter().map(|row| row.data["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["gone", "failing"]);
    for row in told {
        assert_eq!((row.kind.as_str(), &row.tenant), ("webhook.disabled", &Some(tenant("a"))));
        assert!(!row.data.to_string().contains("token"), "{}", row.data);
    }
    assert!(!format!("{:?}", endpoint(None)).contains("hush"));
}

/// Whoever reads on after the last event that it saw misses none, even when the machine's clock
/// was set back by a day between two terms.
#[test]
fn events_of_a_later_term_lie_above_those_before_whatever_the_clock_says() {
    let late = Timestamp(1_800_000_000_000);
    let mut first = Bed::over(Rows::default(), 1, late);
    first.admin(Admin::PutEndpoint(endpoint(Some("gone"))));
    let last = events(&first).last().map(|row| row.id).expect("an event");

    let mut row = endpoint(None);
    let early = late - Millis(86_400_000);
    for rows in [
        Rows { last_event: Some(last), ..Rows::default() },
        Rows { endpoints: vec![EndpointRow { cursor: last, ..row.clone() }], ..Rows::default() },
    ] {
        let mut second = Bed::over(rows, 2, early);
        second.admin(Admin::PutEndpoint(endpoint(Some("gone"))));
        second.now = late - Millis(43_200_000);
        row.id = EndpointId(8);
        row.disabled = Some("gone".to_owned());
        second.admin(Admin::PutEndpoint(row.clone()));
        let ids: Vec<EventId> = events(&second).iter().map(|row| row.id).collect();
        assert!(ids.len() >= 2 && ids[0] > last && ids.is_sorted(), "{last} {ids:?}");
        assert_eq!(events(&second).last().unwrap().at, second.now);
    }
}
