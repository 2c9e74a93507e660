//! The ladder, rung by rung, and on any history.

use proptest::collection::vec;
use proptest::prelude::*;

use super::fixtures::{HOUR, MINUTE, announced, delivered, facts};
use super::*;

#[test]
fn the_ladder_is_climbed_rung_by_rung() {
    let mut ladder = Ladder::default();
    let rule = LadderRule::default();
    assert_eq!(ladder.step(&rule, &facts(0, 7999)), []);
    assert_eq!(ladder.step(&rule, &facts(1, 8000)), [Act::Warn]);
    assert_eq!(ladder.step(&rule, &facts(2, 9999)), [], "warned once");
    assert!(!ladder.rung.refuses_new_work());
    assert_eq!(ladder.step(&rule, &facts(3, 10_000)), [Act::Exhausted]);
    assert!(ladder.rung.refuses_new_work());
    assert_eq!(ladder.step(&rule, &facts(10 * MINUTE + 2, 10_100)), [], "work in flight ends");
    let at = 10 * MINUTE + 3;
    assert_eq!(ladder.step(&rule, &facts(at, 10_100)), [Act::Suspended, Act::PauseIdle]);
    assert_eq!(ladder.step(&rule, &facts(at + 1, 10_100)), [Act::PauseIdle]);
    let notified = |now| Facts { suspended_notice: delivered(at), ..facts(now, 10_100) };
    let day_later = at + 24 * HOUR;
    assert_eq!(ladder.step(&rule, &notified(day_later - 1)), [Act::PauseIdle]);
    let not_before = Timestamp(day_later + 72 * HOUR);
    assert_eq!(
        ladder.step(&rule, &notified(day_later)),
        [Act::PauseIdle, Act::AnnounceDeletion { not_before }]
    );
    // The notice got through an hour late: the grace runs from then.
    let told = |now| Facts { deletion_notice: delivered(day_later + HOUR), ..notified(now) };
    assert_eq!(ladder.step(&rule, &told(not_before.0)), [Act::PauseIdle]);
    assert_eq!(ladder.step(&rule, &told(not_before.0 + HOUR)), [Act::PauseIdle, Act::RunDeletion]);
}

#[test]
fn payment_takes_everything_back_at_every_rung() {
    let (ladder, facts) = announced();
    let mut paid = ladder;
    let acts = paid.step(&LadderRule::default(), &Facts { paying: true, ..facts });
    let overage = Act::Overage { passed: BasisPoints(10_000) };
    assert_eq!(acts, [Act::CancelDeletion, Act::Resume, overage]);
    assert_eq!(paid.rung, Rung::Warned);
    assert_eq!((paid.announced_at, paid.hibernated_at), (None, None));

    // A larger plan does the same, and so does the next period.
    let mut upgraded = ladder;
    let acts = upgraded.step(&LadderRule::default(), &Facts { used: BasisPoints(5000), ..facts });
    assert_eq!(acts, [Act::CancelDeletion, Act::Resume]);
    assert_eq!(upgraded.rung, Rung::Ok);
    let mut renewed = ladder;
    let next = Facts { period: Timestamp(1), used: BasisPoints(3), ..facts };
    assert_eq!(renewed.step(&LadderRule::default(), &next), [Act::CancelDeletion, Act::Resume]);
    assert_eq!(renewed.rung, Rung::Ok);
}

#[test]
fn a_paying_tenant_is_never_refused_and_each_step_of_overage_is_said_once() {
    let mut ladder = Ladder::default();
    let mut said = Vec::new();
    for used in (9000..=15_000).step_by(100) {
        said.extend(ladder.step(&LadderRule::default(), &Facts { paying: true, ..facts(0, used) }));
        assert!(!ladder.rung.refuses_new_work());
        assert!(!budget_refuses(BasisPoints(used), true));
    }
    let overage = |passed| Act::Overage { passed: BasisPoints(passed) };
    assert_eq!(said, [Act::Warn, overage(10_000), overage(12_500), overage(15_000)]);
    // A jump over several steps is one event, for the highest.
    let acts = ladder.step(&LadderRule::default(), &Facts { paying: true, ..facts(0, 31_000) });
    assert_eq!(acts, [overage(30_000)]);
}

#[test]
fn a_corrected_figure_does_not_warn_twice_and_the_next_period_warns_anew() {
    let mut ladder = Ladder::default();
    assert_eq!(ladder.step(&LadderRule::default(), &facts(0, 8100)), [Act::Warn]);
    assert_eq!(ladder.step(&LadderRule::default(), &facts(1, 7900)), []);
    assert_eq!(ladder.step(&LadderRule::default(), &facts(2, 8100)), []);
    let next = Facts { period: Timestamp(1), ..facts(3, 8100) };
    assert_eq!(ladder.step(&LadderRule::default(), &next), [Act::Warn]);
    assert_eq!(ladder.step(&LadderRule::default(), &Facts { used: BasisPoints(100), ..next }), []);
    assert_eq!(ladder.rung, Rung::Ok);
}

#[test]
fn a_tenant_that_cannot_be_notified_is_told_to_the_operator_and_never_deleted() {
    let mut ladder = Ladder::default();
    ladder.step(&LadderRule::default(), &facts(0, 10_000));
    ladder.step(&LadderRule::default(), &facts(10 * MINUTE, 10_000));
    let mut acts = Vec::new();
    for day in 1..100 {
        let facts =
            Facts { suspended_notice: Notice::Undeliverable, ..facts(day * 24 * HOUR, 10_000) };
        acts.extend(ladder.step(&LadderRule::default(), &facts));
    }
    assert_eq!(acts.iter().filter(|act| **act == Act::TellOperator).count(), 1);
    assert!(acts.iter().all(|act| matches!(act, Act::TellOperator | Act::PauseIdle)));
    assert_eq!(ladder.rung, Rung::Hibernated);

    let (mut ladder, facts) = announced();
    let later = Facts {
        now: facts.now + Millis(1000 * HOUR as u64),
        deletion_notice: Notice::Undeliverable,
        ..facts
    };
    assert_eq!(ladder.step(&LadderRule::default(), &later), [Act::PauseIdle, Act::TellOperator]);
}

#[test]
fn an_upgrade_that_is_not_enough_begins_the_ladder_anew() {
    let (mut ladder, facts) = announced();
    assert_eq!(ladder.start_over(facts.now), [Act::CancelDeletion, Act::Resume]);
    assert_eq!(ladder.step(&LadderRule::default(), &facts), [Act::Exhausted]);
    assert_eq!((ladder.rung, ladder.since), (Rung::Exhausted, facts.now));
    assert_eq!(Ladder::default().start_over(facts.now), []);
}

#[test]
fn nothing_is_announced_about_nothing() {
    let (hibernated, facts) = announced();
    let mut ladder = Ladder {
        rung: Rung::Hibernated,
        announced_at: None,
        since: Timestamp(10 * MINUTE),
        ..hibernated
    };
    let nothing = Facts { deletable: false, ..facts };
    assert_eq!(ladder.step(&LadderRule::default(), &nothing), [Act::PauseIdle]);
    assert_eq!(ladder.rung, Rung::Hibernated);
    let acts = ladder.step(&LadderRule::default(), &facts);
    assert!(matches!(acts[..], [Act::PauseIdle, Act::AnnounceDeletion { .. }]));
}

#[test]
fn after_a_deletion_the_next_one_is_announced_as_long_before() {
    let (mut ladder, facts) = announced();
    let rule = LadderRule::default();
    let due = ladder.deletion_due(&rule, facts.deletion_notice).unwrap();
    assert_eq!(ladder.next_step(&rule, facts.deletion_notice), Some(due));
    ladder.deletion_over(due);
    assert_eq!((ladder.rung, ladder.announced_at), (Rung::Hibernated, None));
    assert_eq!(ladder.next_step(&rule, Notice::Pending), Some(due + rule.announce_after));
    let facts = Facts { now: due, ..facts };
    assert_eq!(ladder.step(&rule, &facts), [Act::PauseIdle]);
    let later = Facts { now: due + rule.announce_after, ..facts };
    let not_before = later.now + rule.grace;
    let acts = ladder.step(&rule, &later);
    assert_eq!(acts, [Act::PauseIdle, Act::AnnounceDeletion { not_before }]);
    // The notice of the deletion before is no notice of this one.
    assert_eq!(ladder.deletion_due(&rule, facts.deletion_notice), None);
}

#[test]
fn an_announcement_that_nobody_heard_is_made_again() {
    let (mut ladder, facts) = announced();
    let again = facts.now + Millis(HOUR as u64);
    ladder.announced_again(again);
    let rule = LadderRule::default();
    assert_eq!(ladder.deletion_due(&rule, facts.deletion_notice), None);
    assert_eq!(ladder.deletion_due(&rule, delivered(again.0)), Some(again + rule.grace));
    let mut ok = Ladder::default();
    ok.announced_again(again);
    ok.deletion_over(again);
    assert_eq!(ok, Ladder::default());
}

#[test]
fn a_share_is_reached_exactly_when_the_limit_is() {
    assert_eq!(used_share(u64::MAX, Some(1)), BasisPoints(u64::MAX));
    assert_eq!(used_share(0, Some(0)), BasisPoints::ONE);
}

fn notices() -> impl Strategy<Value = Notice> {
    prop_oneof![
        Just(Notice::Pending),
        Just(Notice::Undeliverable),
        (0_i64..400 * HOUR).prop_map(delivered),
    ]
}

proptest! {
    /// I10, and the promises of the ladder, on any history.
    #[test]
    fn no_history_deletes_without_grace_or_refuses_who_pays(
        steps in vec(
            (0_i64..30 * HOUR, 0_u64..13_000, proptest::bool::weighted(0.1), notices(),
             notices(), 0_i64..2),
            1..60,
        ),
    ) {
        let rule = LadderRule::default();
        let mut ladder = Ladder::default();
        let mut now = 0;
        let mut period = 0;
        for (wait, used, paying, suspended_notice, deletion_notice, next_period) in steps {
            now += wait;
            period += next_period;
            let facts = Facts {
                period: Timestamp(period),
                paying,
                suspended_notice,
                deletion_notice,
                ..facts(now, used)
            };
            let before = ladder;
            let acts = ladder.step(&rule, &facts);
            prop_assert!(!(paying && ladder.rung.refuses_new_work()));
            if used < 10_000 {
                prop_assert!(!ladder.rung.refuses_new_work());
            }
            if acts.contains(&Act::RunDeletion) {
                let announced = before.announced_at.expect("announced before");
                prop_assert!(facts.now >= announced + rule.grace);
                prop_assert!(!paying && used >= 10_000);
                let notice = matches!(deletion_notice, Notice::Delivered(at) if at >= announced);
                prop_assert!(notice);
            }
            prop_assert_eq!(ladder.announced_at.is_some(), ladder.rung == Rung::Deleting);
            prop_assert_eq!(ladder.hibernated_at.is_some(), ladder.rung >= Rung::Hibernated);
            // Saying the same again repeats only what is meant to repeat.
            let again = ladder.step(&rule, &facts);
            prop_assert!(again.iter().all(|act| matches!(
                act,
                Act::PauseIdle | Act::RunDeletion
            )) || before.rung != ladder.rung, "{again:?}");
        }
    }

    #[test]
    fn a_share_rounds_down(used in 0_u64..1_000_000_000, limit in 1_u64..1_000_000_000) {
        let BasisPoints(share) = used_share(used, Some(limit));
        prop_assert_eq!(share >= 10_000, used >= limit);
        prop_assert!(share * limit <= used * 10_000);
        prop_assert!((share + 1) * limit > used * 10_000);
    }
}
