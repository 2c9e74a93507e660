//! When the cell hears of the host: regularly, and at once when something large has changed.

use plimsoll_types::{HostReport, Millis};

use crate::config::HostConfig;
use crate::effect::HostEffect;
use crate::host::Host;
use crate::time::{HostTime, later};

/// First wait after a heartbeat that no cell took; doubles up to the heartbeat's own period, so
/// that a cell that comes back within its stale bound finds the host at once.
const RETRY: Millis = Millis::from_seconds(1);

/// A change of what the host admits by more than a twentieth of its budget is large ...
const LARGE_SHARE: i64 = 20;
/// ... and by less than this never is: one small guest more or less.
const LARGE_FLOOR_MIB: i64 = 64;

/// One heartbeat, as far as its answer and the next need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    sequence: u64,
    told: Answered,
    admittable: Option<i64>,
    at: Millis,
}

/// What a report that is answered now had told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    /// The highest command number that it accounted for.
    pub(crate) seen_through: u64,
    /// The mark up to which it held totals of ended guests.
    pub(crate) ended_through: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Beat {
    sent: Option<Sent>,
    in_flight: bool,
    /// Asked for and not sent yet.
    asked: bool,
    /// Something has changed that the cell should hear of.
    wanted: bool,
    failures: u32,
    failed_at: Option<Millis>,
}

impl Beat {
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    fn sent(&mut self, report: &HostReport, ended_through: u64, now: HostTime) {
        self.asked = false;
        self.in_flight = true;
        self.wanted = false;
        self.sent = Some(Sent {
            sequence: report.sequence,
            told: Answered { seen_through: report.seen_through.unwrap_or(0), ended_through },
            admittable: report.memory_mib_admittable,
            at: now.uptime,
        });
    }

    /// What the answered report had told; `None` when the answer is to none that is known.
    pub(crate) fn answered(&mut self, sequence: u64) -> Option<Answered> {
        self.in_flight = false;
        self.failures = 0;
        self.failed_at = None;
        self.sent.filter(|sent| sent.sequence == sequence).map(|sent| sent.told)
    }

    pub(crate) fn failed(&mut self, now: HostTime) {
        self.asked = false;
        self.in_flight = false;
        self.failures = self.failures.saturating_add(1);
        self.failed_at = Some(now.uptime);
    }

    /// Whether a change would bring the next heartbeat forward to now.
    fn may_hurry(&self, config: &HostConfig, now: HostTime) -> bool {
        let idle = !self.in_flight && !self.asked && self.failed_at.is_none();
        idle && self.sent.is_none_or(|sent| now.since(sent.at) >= config.heartbeat_gap)
    }

    /// The uptime at which the next heartbeat is due; `None` while one is under way.
    pub(crate) fn next(&self, config: &HostConfig) -> Option<Millis> {
        if self.in_flight || self.asked {
            return None;
        }
        if let Some(failed_at) = self.failed_at {
            let doublings = self.failures.saturating_sub(1).min(16);
            let wait = RETRY.0.saturating_mul(1 << doublings).min(config.heartbeat.0);
            return Some(later(failed_at, Millis(wait)));
        }
        Some(match self.sent {
            None => Millis::ZERO,
            Some(sent) if self.wanted => later(sent.at, config.heartbeat_gap),
            Some(sent) => later(sent.at, config.heartbeat),
        })
    }
}

impl Host {
    /// Holds the period of heartbeats to what the cell needs; the owner's own may be shorter.
    pub fn limit_heartbeat(&mut self, period: Millis) {
        self.config.heartbeat = self.config.heartbeat.min(period);
        self.config.heartbeat_gap = self.config.heartbeat_gap.min(self.config.heartbeat);
    }

    /// The report that goes to the cell now.
    pub fn heartbeat(&mut self, now: HostTime) -> HostReport {
        let report = self.report(now);
        self.beat.sent(&report, self.ended.mark(), now);
        report
    }

    /// Asks for a heartbeat where one is due: regularly, and earlier when what the host admits has
    /// moved by much since the cell last heard of it.
    pub(crate) fn consider_heartbeat(&mut self, now: HostTime, out: &mut Vec<HostEffect>) {
        if self.incarnation.is_none() {
            return;
        }
        if !self.beat.wanted && self.beat.may_hurry(&self.config, now) {
            let account = self.account(now).ok().filter(|_| !self.gate.is_shut());
            let moved = match (account, self.beat.sent.and_then(|sent| sent.admittable)) {
                (None, None) => false,
                (Some(account), Some(sent)) => {
                    let large = (account.budget / LARGE_SHARE).max(LARGE_FLOOR_MIB);
                    account.admittable.abs_diff(sent) > large.unsigned_abs()
                }
                _ => true,
            };
            self.beat.wanted = moved;
        }
        if self.beat.next(&self.config).is_some_and(|due| due <= now.uptime) {
            self.beat.asked = true;
            out.push(HostEffect::HeartbeatNow);
        }
    }
}
