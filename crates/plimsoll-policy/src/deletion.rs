//! The one act of the quota ladder that cannot be taken back, and everything that must hold at the
//! moment of it (I10).

use alloc::vec::Vec;

use plimsoll_types::{BasisPoints, Timestamp};

use crate::ladder::{self, Ladder, LadderRule, Rung};

/// Everything that is looked at before one resource is deleted for an exhausted budget, read anew
/// at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What is known about the tenant now.
    pub tenant: ladder::Facts,
    /// Whether the usage figure is complete up to now: no host is late with its reports.
    pub usage_complete: bool,
    /// Whether the tenant's plan could be read now, and not merely remembered.
    pub plan_known: bool,
    /// Whether the resource was named in the announcement.
    pub announced: bool,
    /// Whether the resource is paused or stopped.
    pub at_rest: bool,
    /// When the resource was last used.
    pub last_active_at: Timestamp,
}

/// A precondition of deletion that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Missing {
    /// The tenant stands on no rung from which anything is deleted.
    NotDeleting,
    /// The budget is not used up in the present period.
    NotExhausted,
    /// The tenant pays.
    Paying,
    /// Usage reports are outstanding.
    UsageIncomplete,
    /// The plan could not be read.
    PlanUnknown,
    /// The notice of hibernation has not been delivered.
    SuspendedNotice,
    /// The notice of deletion has not been delivered.
    DeletionNotice,
    /// The grace after announcement and delivery is not over.
    Grace,
    /// The announcement did not name this resource.
    NotAnnounced,
    /// The resource is not at rest.
    NotAtRest,
    /// It was used after the announcement.
    UsedSince,
}

/// Whether one resource may be deleted at this moment (I10).
///
/// # Errors
/// Every precondition that does not hold.
pub fn preconditions(
    ladder: &Ladder,
    rule: &LadderRule,
    facts: &Facts,
) -> Result<(), Vec<Missing>> {
    let tenant = &facts.tenant;
    let announced_at = ladder.announced_at;
    let due = ladder.deletion_due(rule, tenant.deletion_notice);
    let suspended = tenant.suspended_notice.delivered_since(ladder.hibernated_at);
    let holds = [
        (Missing::NotDeleting, ladder.rung == Rung::Deleting && announced_at.is_some()),
        (Missing::NotExhausted, tenant.used >= BasisPoints::ONE && ladder.period == tenant.period),
        (Missing::Paying, !tenant.paying),
        (Missing::UsageIncomplete, facts.usage_complete),
        (Missing::PlanUnknown, facts.plan_known),
        (Missing::SuspendedNotice, suspended.is_some()),
        (Missing::DeletionNotice, due.is_some()),
        (Missing::Grace, due.is_some_and(|due| tenant.now >= due)),
        (Missing::NotAnnounced, facts.announced),
        (Missing::NotAtRest, facts.at_rest),
        (Missing::UsedSince, announced_at.is_some_and(|at| facts.last_active_at <= at)),
    ];
    let missing: Vec<_> =
        holds.into_iter().filter(|(_, holds)| !holds).map(|(missing, _)| missing).collect();
    if missing.is_empty() { Ok(()) } else { Err(missing) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::Notice;
    use crate::ladder::fixtures::{MINUTE, announced, delivered};

    fn deletable() -> (Ladder, Facts) {
        let (ladder, facts) = announced();
        let tenant = ladder::Facts { now: facts.now + LadderRule::default().grace, ..facts };
        let facts = Facts {
            tenant,
            usage_complete: true,
            plan_known: true,
            announced: true,
            at_rest: true,
            last_active_at: Timestamp(0),
        };
        (ladder, facts)
    }

    #[test]
    fn every_single_precondition_holds_deletion_back() {
        let (ladder, facts) = deletable();
        let check =
            |ladder: Ladder, facts: Facts| preconditions(&ladder, &LadderRule::default(), &facts);
        assert_eq!(check(ladder, facts), Ok(()));
        let tenant = facts.tenant;
        let with = |tenant| Facts { tenant, ..facts };
        let missing = |facts| check(ladder, facts).unwrap_err();

        let hibernated = Ladder { rung: Rung::Hibernated, ..ladder };
        assert_eq!(check(hibernated, facts), Err(Vec::from([Missing::NotDeleting])));
        let used = BasisPoints(9999);
        assert_eq!(missing(with(ladder::Facts { used, ..tenant })), [Missing::NotExhausted]);
        let period = Timestamp(1);
        assert_eq!(missing(with(ladder::Facts { period, ..tenant })), [Missing::NotExhausted]);
        assert_eq!(missing(with(ladder::Facts { paying: true, ..tenant })), [Missing::Paying]);
        let late = Facts { usage_complete: false, ..facts };
        assert_eq!(missing(late), [Missing::UsageIncomplete]);
        let unread = Facts { plan_known: false, ..facts };
        assert_eq!(missing(unread), [Missing::PlanUnknown]);
        let suspended_notice = Notice::Pending;
        assert_eq!(
            missing(with(ladder::Facts { suspended_notice, ..tenant })),
            [Missing::SuspendedNotice]
        );
        for deletion_notice in [Notice::Pending, Notice::Undeliverable, delivered(0)] {
            assert_eq!(
                missing(with(ladder::Facts { deletion_notice, ..tenant })),
                [Missing::DeletionNotice, Missing::Grace]
            );
        }
        let now = Timestamp(tenant.now.0 - 1);
        assert_eq!(missing(with(ladder::Facts { now, ..tenant })), [Missing::Grace]);
        let unnamed = Facts { announced: false, ..facts };
        assert_eq!(missing(unnamed), [Missing::NotAnnounced]);
        assert_eq!(missing(Facts { at_rest: false, ..facts }), [Missing::NotAtRest]);
        let used_since = Facts { last_active_at: tenant.now, ..facts };
        assert_eq!(missing(used_since), [Missing::UsedSince]);
    }

    #[test]
    fn a_notice_of_an_earlier_hibernation_is_no_notice_of_this_one() {
        let (ladder, facts) = deletable();
        let tenant = ladder::Facts { suspended_notice: delivered(MINUTE), ..facts.tenant };
        assert_eq!(
            preconditions(&ladder, &LadderRule::default(), &Facts { tenant, ..facts }),
            Err(Vec::from([Missing::SuspendedNotice]))
        );
    }

    #[test]
    fn a_default_ladder_deletes_nothing() {
        let (_, facts) = deletable();
        let missing =
            preconditions(&Ladder::default(), &LadderRule::default(), &facts).unwrap_err();
        assert!(missing.contains(&Missing::NotDeleting) && missing.contains(&Missing::Grace));
    }
}
