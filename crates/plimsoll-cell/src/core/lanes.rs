//! The bounded queues into the engine.
//!
//! Three lanes in order (DESIGN 6.2): what gives capacity back and what hosts say; operators; new
//! work, fair by tenant. Each round takes a bounded number from each lane, so that a flood in one
//! delays the next and never stops it. What does not fit is refused here, for the price of a lock.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_engine::{Command, Input};
use plimsoll_types::TenantId;
use tokio::sync::oneshot;

use super::{Answer, NoAnswer};

/// Most reports and outcomes that wait: a fleet of some 10 000 hosts that report within the same
/// few seconds.
const HOSTS_MAX: usize = 8_192;
/// Most releases of one tenant that wait.
const RELEASES_PER_TENANT_MAX: usize = 4_096;
/// Most releases that wait in all.
const RELEASES_MAX: usize = 16_384;
/// Most operators' calls that wait: people and dashboards, not traffic.
const OPERATORS_MAX: usize = 1_024;
/// Most calls of one tenant that wait: some 40 ms of work at 25 000 a second.
const CREATES_PER_TENANT_MAX: usize = 1_024;
/// Most calls of tenants that wait in all: below a second of work.
const CREATES_MAX: usize = 16_384;

/// Most that one round takes from each lane. A round is what one batch holds at least, so these
/// bound how long the lanes behind wait.
const ROUND: Round = Round { hosts: 1_024, releases: 1_024, operators: 64, creates: 1_024 };

struct Round {
    hosts: usize,
    releases: usize,
    operators: usize,
    creates: usize,
}

/// Which queue.
#[derive(Clone, Debug)]
pub(crate) enum Lane {
    /// Host reports, outcomes of host commands, registrations.
    Hosts,
    /// What gives back, of this tenant.
    Releases(TenantId),
    /// Operators' calls.
    Operators,
    /// Everything else, of this tenant.
    Creates(TenantId),
}

/// One input on its way into the engine.
#[derive(Debug)]
pub(crate) struct Job {
    /// What the engine is to apply.
    pub(crate) input: Input,
    /// Who waits for the reply.
    pub(crate) reply: Option<oneshot::Sender<Answer>>,
    /// Whether it need not be applied when nobody waits any more.
    pub(crate) skip_unawaited: bool,
}

impl Job {
    /// Whether it changes nothing.
    fn is_question(&self) -> bool {
        matches!(&self.input, Input::Call { command: Command::Read(_), .. })
    }
}

/// Jobs of many tenants, taken in turns.
#[derive(Debug, Default)]
struct Fair {
    queues: HashMap<TenantId, VecDeque<Job>>,
    turns: VecDeque<TenantId>,
    spare: Vec<VecDeque<Job>>,
    len: usize,
}

impl Fair {
    fn push(&mut self, tenant: &TenantId, job: Job, own_max: usize, max: usize) -> Result<(), Job> {
        if self.len >= max {
            return Err(job);
        }
        if let Some(queue) = self.queues.get_mut(tenant) {
            if queue.len() >= own_max {
                return Err(job);
            }
            queue.push_back(job);
        } else {
            let mut queue = self.spare.pop().unwrap_or_default();
            queue.push_back(job);
            self.queues.insert(tenant.clone(), queue);
            self.turns.push_back(tenant.clone());
        }
        self.len += 1;
        Ok(())
    }

    fn pop(&mut self) -> Option<Job> {
        let tenant = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&tenant)?;
        let job = queue.pop_front();
        if queue.is_empty() {
            if let Some(empty) = self.queues.remove(&tenant)
                && self.spare.len() < 16
            {
                self.spare.push(empty);
            }
        } else {
            self.turns.push_back(tenant);
        }
        self.len -= usize::from(job.is_some());
        job
    }
}

#[derive(Debug, Default)]
struct Queues {
    hosts: VecDeque<Job>,
    releases: Fair,
    operators: VecDeque<Job>,
    creates: Fair,
    /// Whether the engine's thread sleeps on the condition.
    parked: bool,
    /// Set to wake the thread for a reason other than a job.
    kicked: bool,
    /// Why nothing is taken in, where that is so.
    shut: Option<NoAnswer>,
    /// Whether questions are taken in all the same.
    questions: bool,
}

impl Queues {
    fn len(&self) -> usize {
        self.hosts.len() + self.releases.len + self.operators.len() + self.creates.len
    }
}

/// The lanes, shared between the API's tasks and the engine's thread.
#[derive(Debug)]
pub(crate) struct Lanes {
    queues: Mutex<Queues>,
    wake: Condvar,
}

impl Lanes {
    /// Lanes that are shut until [`Lanes::open`].
    pub(crate) fn shut_for(why: NoAnswer) -> Self {
        let queues = Queues { shut: Some(why), ..Queues::default() };
        Self { queues: Mutex::new(queues), wake: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job in its lane.
    ///
    /// # Errors
    /// When the lane is full or nothing is taken in at the moment.
    pub(crate) fn push(&self, lane: &Lane, job: Job) -> Result<(), NoAnswer> {
        self.push_back(lane, job).map_err(|(why, _)| why)
    }

    /// As [`Lanes::push`]; a job that is not taken comes back.
    pub(crate) fn push_back(&self, lane: &Lane, job: Job) -> Result<(), (NoAnswer, Job)> {
        let mut queues = self.lock();
        if let Some(why) = queues.shut
            && !(queues.questions && job.is_question())
        {
            return Err((why, job));
        }
        let pushed = match lane {
            Lane::Hosts => push_plain(&mut queues.hosts, job, HOSTS_MAX),
            Lane::Operators => push_plain(&mut queues.operators, job, OPERATORS_MAX),
            Lane::Releases(tenant) => {
                queues.releases.push(tenant, job, RELEASES_PER_TENANT_MAX, RELEASES_MAX)
            }
            Lane::Creates(tenant) => {
                queues.creates.push(tenant, job, CREATES_PER_TENANT_MAX, CREATES_MAX)
            }
        };
        if let Err(job) = pushed {
            return Err((NoAnswer::Overloaded, job));
        }
        if queues.parked {
            queues.parked = false;
            drop(queues);
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Takes a round of jobs, in the order of the lanes. Waits up to `wait` for the first one; a
    /// [`Lanes::kick`] ends the wait too.
    ///
    /// The first job wakes it while a batch is being committed as well. To let jobs gather until
    /// the end of the commit would spare wake-ups, and have the writer wait for the engine then:
    /// at 64 connections that took a third of the throughput.
    pub(crate) fn take(&self, jobs: &mut Vec<Job>, wait: Duration) {
        let mut queues = self.lock();
        if !wait.is_zero() {
            let deadline = std::time::Instant::now() + wait;
            loop {
                if queues.kicked || queues.len() > 0 {
                    break;
                }
                let left = deadline.saturating_duration_since(std::time::Instant::now());
                if left.is_zero() {
                    break;
                }
                queues.parked = true;
                let woken = self.wake.wait_timeout(queues, left);
                queues = woken.unwrap_or_else(PoisonError::into_inner).0;
                queues.parked = false;
            }
        }
        queues.kicked = false;
        let hosts = queues.hosts.len().min(ROUND.hosts);
        jobs.extend(queues.hosts.drain(..hosts));
        take_fair(&mut queues.releases, ROUND.releases, jobs);
        let operators = queues.operators.len().min(ROUND.operators);
        jobs.extend(queues.operators.drain(..operators));
        take_fair(&mut queues.creates, ROUND.creates, jobs);
    }

    /// Wakes the engine's thread without a job.
    pub(crate) fn kick(&self) {
        let mut queues = self.lock();
        queues.kicked = true;
        queues.parked = false;
        drop(queues);
        self.wake.notify_one();
    }

    /// Takes jobs in.
    pub(crate) fn open(&self) {
        self.lock().shut = None;
    }

    /// Takes questions in, and nothing else, until they are opened or shut.
    pub(crate) fn open_for_questions(&self) {
        self.lock().questions = true;
    }

    /// Takes nothing in any more, and hands out what waits.
    pub(crate) fn shut(&self, why: NoAnswer) -> Vec<Job> {
        let mut queues = self.lock();
        queues.shut = Some(why);
        queues.questions = false;
        let mut jobs: Vec<Job> = queues.hosts.drain(..).collect();
        take_fair(&mut queues.releases, usize::MAX, &mut jobs);
        jobs.extend(queues.operators.drain(..));
        take_fair(&mut queues.creates, usize::MAX, &mut jobs);
        jobs
    }
}

fn push_plain(queue: &mut VecDeque<Job>, job: Job, max: usize) -> Result<(), Job> {
    if queue.len() >= max {
        return Err(job);
    }
    queue.push_back(job);
    Ok(())
}

fn take_fair(fair: &mut Fair, most: usize, jobs: &mut Vec<Job>) {
    for _ in 0..most {
        match fair.pop() {
            Some(job) => jobs.push(job),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_engine::rows::Role;
    use plimsoll_engine::{Caller, Read, Token};
    use plimsoll_types::HostId;

    use super::*;

    fn job(name: &str) -> Job {
        let host = HostId::new(name).unwrap();
        Job { input: Input::ProbeFailed { host }, reply: None, skip_unawaited: false }
    }

    fn names(jobs: &[Job]) -> Vec<String> {
        let name = |job: &Job| match &job.input {
            Input::ProbeFailed { host } => host.to_string(),
            other => format!("{other:?}"),
        };
        jobs.iter().map(name).collect()
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn open() -> Lanes {
        let lanes = Lanes::shut_for(NoAnswer::Loading);
        lanes.open();
        lanes
    }

    #[test]
    fn lanes_are_taken_in_order_and_tenants_in_turns() {
        let lanes = open();
        let (a, b) = (tenant("a"), tenant("b"));
        for (lane, name) in [
            (Lane::Creates(a.clone()), "a1"),
            (Lane::Creates(a.clone()), "a2"),
            (Lane::Creates(a.clone()), "a3"),
            (Lane::Creates(b.clone()), "b1"),
            (Lane::Operators, "op"),
            (Lane::Releases(a), "r1"),
            (Lane::Releases(b), "r2"),
            (Lane::Hosts, "h"),
        ] {
            lanes.push(&lane, job(name)).unwrap();
        }
        let mut jobs = Vec::new();
        lanes.take(&mut jobs, Duration::ZERO);
        assert_eq!(names(&jobs), ["h", "r1", "r2", "op", "a1", "b1", "a2", "a3"]);
    }

    #[test]
    fn one_tenant_cannot_fill_the_lane_of_the_others() {
        let lanes = open();
        let (a, b) = (tenant("a"), tenant("b"));
        let mut taken = 0;
        while lanes.push(&Lane::Creates(a.clone()), job("a")).is_ok() {
            taken += 1;
        }
        assert_eq!(taken, CREATES_PER_TENANT_MAX);
        lanes.push(&Lane::Creates(b), job("b")).unwrap();
        let mut jobs = Vec::new();
        lanes.take(&mut jobs, Duration::ZERO);
        assert_eq!(jobs.len(), ROUND.creates);
        assert_eq!(names(&jobs)[1], "b");
    }

    #[test]
    fn a_flood_of_releases_leaves_room_for_creates_in_each_round() {
        let lanes = open();
        let a = tenant("a");
        while lanes.push(&Lane::Releases(a.clone()), job("r")).is_ok() {}
        lanes.push(&Lane::Creates(a), job("c")).unwrap();
        let mut jobs = Vec::new();
        lanes.take(&mut jobs, Duration::ZERO);
        assert_eq!(jobs.len(), ROUND.releases + 1);
        assert_eq!(names(&jobs).last().map(String::as_str), Some("c"));
    }

    #[test]
    fn shut_lanes_refuse_with_the_reason_and_hand_out_what_waited() {
        let lanes = open();
        lanes.push(&Lane::Hosts, job("h")).unwrap();
        lanes.push(&Lane::Creates(tenant("a")), job("c")).unwrap();
        let left = lanes.shut(NoAnswer::StoreUnavailable);
        assert_eq!(names(&left), ["h", "c"]);
        assert_eq!(lanes.push(&Lane::Hosts, job("h")), Err(NoAnswer::StoreUnavailable));
        lanes.open();
        assert_eq!(lanes.push(&Lane::Hosts, job("h")), Ok(()));
    }

    #[test]
    fn shut_lanes_may_take_questions_in() {
        let question = || {
            let caller = Caller { role: Role::Operator, tenant: tenant("a") };
            let input =
                Input::Call { token: Token(1), caller, command: Command::Read(Read::Counts) };
            Job { input, reply: None, skip_unawaited: true }
        };
        let lanes = open();
        lanes.shut(NoAnswer::StoreUnavailable);
        let refused = Err(NoAnswer::StoreUnavailable);
        assert_eq!(lanes.push(&Lane::Operators, question()), refused);
        lanes.open_for_questions();
        assert_eq!(lanes.push(&Lane::Operators, question()), Ok(()));
        assert_eq!(lanes.push(&Lane::Hosts, job("h")), refused);
        assert_eq!(lanes.shut(NoAnswer::NotLeader).len(), 1);
        assert_eq!(lanes.push(&Lane::Operators, question()), Err(NoAnswer::NotLeader));
    }
}
