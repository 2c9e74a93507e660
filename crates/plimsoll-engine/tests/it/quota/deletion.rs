//! The deletion: announced twice, never from whom nothing reaches, and only when everything holds at
//! the moment it acts (I10).

use plimsoll_engine::rows::{EndpointRow, EventRow};
use plimsoll_engine::{Admin, Command, Input};
use plimsoll_types::{HostOutcome, Millis, RefusalCode, SandboxStatus, Timestamp};
use proptest::collection::vec;
use proptest::prelude::*;

use super::ladder::{LIMIT, START, Walk};
use super::{DAY, HOUR, MINUTE, caller, code};

/// Something that is done meanwhile.
type Act = fn(&mut Walk);

#[test]
fn a_tenant_that_cannot_be_told_is_never_deleted_from_and_the_operator_is_told() {
    let mut walk = Walk::new();
    walk.spend(1_000);
    walk.wait(11 * MINUTE);
    assert_eq!(walk.state(), "hibernated");
    assert_eq!(walk.bed.events("quota.unnotified").len(), 1);
    assert_eq!(walk.bed.events("quota.unnotified")[0].tenant, None);
    assert_eq!(walk.bed.events("quota.unnotified")[0].data["tenant"], "acme");
    walk.wait(8 * DAY);
    assert_eq!(walk.state(), "hibernated");
    // An endpoint of somebody else, one that is off, one that wants other events: none will do.
    walk.bed.endpoint("default", |_| {});
    walk.bed.endpoint("acme", |row| row.disabled = Some("failing".to_owned()));
    walk.bed.endpoint("acme", |row| row.events = vec!["sandbox.started".to_owned()]);
    assert_eq!(walk.bed.events("quota.suspended").len(), 1);
    // Its own, that hears: it is told now.
    let id = walk.bed.endpoint("acme", |_| {});
    assert_eq!(walk.bed.events("quota.suspended").len(), 2);
    // The first of the two was given up on long ago.
    let first = walk.bed.events("quota.suspended")[0].id;
    walk.bed.input(Input::Delivered { event: first, endpoint: id, delivered: true });
    walk.wait(DAY);
    assert_eq!(walk.state(), "hibernated", "an earlier notice is none of this one");
    walk.bed.came_out("quota.suspended", true);
    walk.wait(HOUR);
    assert_eq!(walk.state(), "deleting");
    // The endpoint goes before the second notice came out.
    walk.bed.admin(Admin::DropEndpoint(id));
    walk.wait(4 * DAY);
    assert_eq!(walk.status(walk.idle), SandboxStatus::Paused);
    assert_eq!(walk.bed.events("quota.unnotified").len(), 1, "once for each hibernation");
    // Back again: told again, and the 72 hours run from then.
    walk.bed.endpoint("acme", |_| {});
    assert_eq!(walk.bed.events("quota.deletion_scheduled").len(), 2);
    walk.bed.came_out("quota.deletion_scheduled", true);
    walk.wait(3 * DAY - HOUR);
    assert_eq!(walk.status(walk.idle), SandboxStatus::Paused);
    walk.wait(2 * HOUR);
    assert_eq!(walk.status(walk.idle), SandboxStatus::Terminated);
}

#[test]
fn a_notice_that_one_endpoint_gave_up_on_and_another_took_counts_as_delivered() {
    let mut walk = Walk::new();
    walk.climb(2);
    walk.wait(11 * MINUTE);
    walk.bed.came_out("quota.suspended", false);
    walk.bed.came_out("quota.suspended", true);
    walk.bed.came_out("quota.suspended", false);
    walk.wait(DAY + HOUR);
    assert_eq!(walk.state(), "deleting");
}

#[test]
fn a_notice_that_nobody_waits_for_any_more_has_come_to_nobody_in_whatever_order() {
    type Leave = fn(&mut Walk, EndpointRow);
    let leaves: [Leave; 3] = [
        |walk, row| walk.bed.admin(Admin::DropEndpoint(row.id)),
        |walk, row| {
            let disabled = Some("nothing was taken".to_owned());
            walk.bed.admin(Admin::PutEndpoint(EndpointRow { disabled, ..row }));
        },
        |walk, row| {
            let events = vec!["sandbox.started".to_owned()];
            walk.bed.admin(Admin::PutEndpoint(EndpointRow { events, ..row }));
        },
    ];
    for leave in leaves {
        for gives_up_first in [true, false] {
            for restarts in [false, true] {
                let mut walk = Walk::new();
                walk.climb(2);
                let own = walk.bed.endpoints()[0].id;
                let other = walk.bed.endpoint("acme", |_| {});
                walk.wait(11 * MINUTE);
                assert_eq!(walk.state(), "hibernated");
                let mut rows = walk.bed.endpoints().into_iter();
                let other = rows.find(|row| row.id == other).unwrap();
                if gives_up_first {
                    walk.bed.came_out_at(own, "quota.suspended", false);
                } else {
                    leave(&mut walk, other.clone());
                }
                if restarts {
                    walk.bed.restart();
                }
                walk.wait(MINUTE);
                assert_eq!(walk.bed.events("quota.unnotified").len(), 0);
                if gives_up_first {
                    leave(&mut walk, other);
                } else {
                    walk.bed.came_out_at(own, "quota.suspended", false);
                }
                assert_eq!(walk.bed.events("quota.unnotified").len(), 1);
            }
        }
    }
}

#[test]
fn an_endpoint_that_came_after_a_notice_hears_it_once_the_others_have_given_it_up() {
    let mut walk = Walk::new();
    walk.climb(2);
    let own = walk.bed.endpoints()[0].id;
    walk.wait(11 * MINUTE);
    let said = walk.bed.events("quota.suspended")[0].id;
    let later = walk.bed.endpoint("acme", |row| row.cursor = said);
    assert_eq!(walk.bed.events("quota.suspended").len(), 1, "the first may get through yet");
    walk.bed.came_out_at(own, "quota.suspended", false);
    assert_eq!(walk.bed.events("quota.suspended").len(), 2);
    walk.bed.came_out_at(later, "quota.suspended", true);
    assert_eq!(walk.bed.events("quota.unnotified").len(), 0);
    walk.wait(DAY + HOUR);
    assert_eq!(walk.state(), "deleting");
}

#[test]
fn every_precondition_is_looked_at_when_the_deletion_acts() {
    // Each of these is done in the hour before the deletion would act, and holds it back.
    let before: [(&str, Act); 4] = [
        ("its host is silent", |walk| {
            let now = walk.bed.now;
            walk.bed.pass(HOUR + 10 * MINUTE);
            assert!(walk.bed.now > now);
        }),
        ("it pays", |walk| walk.pay()),
        ("its plan is larger", |walk| walk.upgrade()),
        ("its owner deletes it", |walk| {
            let id = walk.idle;
            walk.bed.call(&caller("acme"), Command::Delete { id });
        }),
    ];
    for (what, act) in before {
        let mut walk = Walk::new();
        walk.climb(4);
        walk.wait(3 * DAY - HOUR);
        act(&mut walk);
        walk.bed.pass(2 * HOUR);
        assert!(walk.bed.events("quota.deleted").is_empty(), "{what}");
    }
    // A silent host only puts it off.
    let mut walk = Walk::new();
    walk.climb(4);
    walk.wait(3 * DAY - HOUR);
    walk.bed.pass(HOUR + 40 * MINUTE);
    assert_eq!(walk.status(walk.idle), SandboxStatus::Paused);
    walk.wait(2 * MINUTE);
    assert_eq!(walk.status(walk.idle), SandboxStatus::Terminated);
}

#[test]
fn what_its_owner_paused_is_neither_resumed_nor_deleted() {
    let mut walk = Walk::new();
    let own = walk.bed.run_of("acme", |_| {});
    walk.bed.call(&caller("acme"), Command::Pause { id: own });
    walk.bed.answer(HostOutcome::Done);
    walk.others.push(own);
    walk.climb(4);
    walk.wait(3 * DAY + HOUR);
    assert_eq!(walk.status(walk.idle), SandboxStatus::Terminated);
    walk.pay();
    walk.settle();
    assert_eq!(walk.bed.show(own).row.paused_by, None);
    assert_eq!(walk.status(own), SandboxStatus::Paused);
}

#[test]
fn an_owner_may_keep_paused_what_the_ladder_has_paused() {
    let mut walk = Walk::new();
    walk.climb(4);
    let id = walk.idle;
    walk.bed.call(&caller("acme"), Command::Pause { id });
    walk.wait(4 * DAY);
    assert_eq!(walk.status(id), SandboxStatus::Paused, "it is no longer the ladder's");
    walk.pay();
    walk.settle();
    assert_eq!(walk.status(id), SandboxStatus::Paused);
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    Wait(u64),
    Silence(u64),
    Spend(u64),
    Pay(bool),
    Limit(u64),
    Came(bool),
    Restart,
    Resume,
    Endpoint,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = prop_oneof![
        6 => (1_u64..60).prop_map(|hours| Turn::Wait(hours * HOUR)),
        1 => (1_u64..10).prop_map(|hours| Turn::Silence(hours * HOUR / 8)),
        3 => (500_u64..1_500).prop_map(Turn::Spend),
        1 => prop::bool::weighted(0.3).prop_map(Turn::Pay),
        1 => (1_u64..3).prop_map(Turn::Limit),
        5 => prop::bool::weighted(0.9).prop_map(Turn::Came),
        1 => Just(Turn::Restart),
        1 => Just(Turn::Resume),
        1 => Just(Turn::Endpoint),
    ];
    vec(turn, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// I10 by an oracle that shares nothing with the ladder: it only knows what was said, what
    /// came out, who paid, and what was used.
    #[test]
    fn nothing_is_deleted_unless_everything_holds(turns in turns()) {
        let mut walk = Walk::at(START, |_| {});
        walk.bed.endpoint("acme", |_| {});
        let mut paying = false;
        // Since when, without a break, the budget has been used up and nobody has paid.
        let mut over_since: Option<Timestamp> = None;
        let mut delivered: Vec<(plimsoll_types::EventId, Timestamp)> = Vec::new();
        for turn in turns {
            let alive = walk.status(walk.idle) != SandboxStatus::Terminated;
            let deleted = walk.bed.events("quota.deleted").len();
            let from = walk.bed.now;
            match turn {
                Turn::Wait(millis) => walk.wait(millis),
                Turn::Silence(millis) => walk.bed.pass(millis),
                Turn::Spend(thousandths) => walk.spend(thousandths),
                Turn::Pay(on) => {
                    paying = on;
                    walk.bed.change_tenant("acme", |row| row.payment_method = on);
                }
                Turn::Limit(times) => walk.bed.change_plan("acme", |limits| {
                    limits.consumption.cpu_seconds = Some(LIMIT * times);
                }),
                Turn::Came(ok) => {
                    for kind in ["quota.suspended", "quota.deletion_scheduled"] {
                        if let Some(event) = walk.bed.events(kind).last().map(|event| event.id) {
                            walk.bed.came_out(kind, ok);
                            if ok {
                                delivered.push((event, walk.bed.now));
                            }
                        }
                    }
                }
                Turn::Restart => {
                    walk.bed.restart();
                    walk.settle();
                }
                Turn::Resume => {
                    let id = walk.idle;
                    let reply = walk.bed.resume_of("acme", id);
                    let spent = over_since.is_some();
                    if spent && walk.status(id) == SandboxStatus::Paused {
                        prop_assert_eq!(code(&reply), Some(RefusalCode::BudgetExhausted));
                    }
                    walk.settle();
                }
                Turn::Endpoint => drop(walk.bed.endpoint("acme", |_| {})),
            }
            let quota = walk.bed.quota("acme");
            let [(_, cpu), ..] = quota.consumption;
            let over = cpu.limit.is_some_and(|limit| cpu.used >= limit) && !paying;
            // One that was lost with its host is forgotten after a day; the ladder says what it does.
            let gone = alive
                && walk.status(walk.idle) == SandboxStatus::Terminated
                && walk.bed.events("quota.deleted").len() > deleted;
            if gone {
                let since = over_since.expect("over budget before");
                let by_ladder = |kind: &str| -> Vec<EventRow> {
                    walk.bed.events(kind).into_iter().cloned().collect()
                };
                let came = |event: &EventRow| {
                    delivered.iter().find(|(id, _)| *id == event.id).map(|(_, at)| *at)
                };
                let first = by_ladder("quota.suspended");
                let told = first.iter().any(|event| event.at >= since && came(event).is_some());
                prop_assert!(told, "no first notice");
                let end = walk.bed.events("quota.deleted").last().expect("it is said").at;
                let second = by_ladder("quota.deletion_scheduled");
                let named = second.iter().any(|event| {
                    let named = event.data["sandboxes"].as_array().unwrap();
                    named.contains(&serde_json::json!(walk.idle))
                        && event.at >= since
                        && came(event).is_some_and(|at| end.since(at) >= Millis(3 * DAY))
                });
                prop_assert!(named, "not named 72 hours before");
                prop_assert!(!paying);
            }
            over_since = if over { over_since.or(Some(from)) } else { None };
            if paying {
                walk.settle();
                let reply = walk.bed.create_of("acme", |create| {
                    create.memory_mib = Some(plimsoll_types::Mib(1));
                });
                prop_assert_ne!(code(&reply), Some(RefusalCode::BudgetExhausted));
                walk.settle();
            }
        }
    }
}
