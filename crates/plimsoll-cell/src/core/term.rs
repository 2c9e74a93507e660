//! Terms: from taking the lease to losing it, one engine each.
//!
//! A term begins with the lease under a new epoch and the state as the store has it. It ends when
//! a commit fails, when the cell finds that it was stopped for a while, or when it shuts down. What
//! was not durable is then answered "unknown", the engine is dropped, and the next term begins.
//! What hosts have reported is no ledger: it is kept here and told to the next engine, at the times
//! at which it came.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use plimsoll_engine::rows::{Role, Rows};
use plimsoll_engine::{Admin, Caller, Change, Command, Engine, EngineConfig, Input, Output, Reply};
use plimsoll_engine::{RestoreError, Token};
use plimsoll_store::{LoadLimits, Retention, Store, StoreError};
use plimsoll_types::{HostId, HostReport, Timestamp};
use tokio::sync::oneshot;

use super::handoff::{NotPut, Owed, Put};
use super::lanes::Job;
use super::writer::{Writer, Written};
use super::{Answer, Core, NoAnswer};
use crate::clock::Clock;
use crate::shell::Shell;

/// The engine's thread looks around at least so often: it bounds how late a stop of the whole
/// process is noticed.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Calls for which the engine reads ahead at a time: what it reads for them, 256 bytes for each,
/// fits beside its own in the nearest cache.
const FORESEEN: usize = 64;
/// Waits between attempts to begin a term: first this long, then double, up to the second.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// See [`RETRY_MIN`]. Short enough that a store which is back is used within seconds.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Gives the store for a term: the one of the term before where it can still be used, or a new one.
pub(crate) type Opener =
    Box<dyn FnMut(Option<Box<dyn Store>>) -> Result<Box<dyn Store>, StoreError> + Send>;

/// Says what the first start has to make, from what the store holds.
pub(crate) type FirstStart = Box<dyn FnMut(&Rows, Timestamp) -> std::io::Result<Vec<Admin>> + Send>;

/// Why a term could not begin.
#[derive(Debug, thiserror::Error)]
pub enum TermError {
    /// The store did not open, or did not give its lease or rows.
    #[error("the store is not usable")]
    Store(#[from] StoreError),
    /// The rows contradict each other.
    #[error("the stored state is not usable")]
    Restore(#[from] RestoreError),
    /// The files of the first start could not be written.
    #[error("the key files could not be written")]
    Files(#[from] std::io::Error),
}

/// Where the cell stands.
#[derive(Clone, Debug, Default)]
pub(crate) enum Standing {
    /// A term is about to begin.
    #[default]
    Loading,
    /// State is loaded and this replica leads, under this epoch.
    Leading(u64),
    /// A term could not begin; it is tried again.
    Waiting(Arc<TermError>),
    /// Shut down.
    Stopped,
}

/// The engine's thread.
pub(crate) struct Terms {
    pub(crate) core: Arc<Core>,
    pub(crate) shell: Arc<Shell>,
    pub(crate) config: EngineConfig,
    pub(crate) holder: String,
    pub(crate) opener: Opener,
    pub(crate) first_start: FirstStart,
    pub(crate) limits: LoadLimits,
    pub(crate) retention: Retention,
    pub(crate) stop: Arc<AtomicBool>,
}

/// How a term ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The cell shuts down.
    Stopped,
    /// A commit failed.
    Failed,
    /// The process was stopped, or its clock set: what hosts said since cannot be trusted.
    Gap,
    /// The engine panicked.
    Panicked,
}

/// What outlives a term.
struct Kept {
    clock: Clock,
    store: Option<Box<dyn Store>>,
    reports: BTreeMap<HostId, (Timestamp, HostReport)>,
    /// While the store takes nothing: the state that it holds, to answer questions from. What
    /// hosts have said is in it, and time stands still.
    spare: Option<Engine>,
}

impl Terms {
    /// Leads terms until the cell is told to stop.
    pub(crate) fn run(mut self) {
        let mut kept =
            Kept { clock: Clock::start(), store: None, reports: BTreeMap::new(), spare: None };
        let mut retry = RETRY_MIN;
        while !self.stop.load(Ordering::Acquire) {
            match self.begin(&mut kept) {
                Ok(term) => {
                    retry = RETRY_MIN;
                    kept.spare = None;
                    self.lead(term, &mut kept);
                }
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "the cell cannot lead; it tries again"
                    );
                    match &error {
                        TermError::Store(StoreError::Held { .. } | StoreError::Fenced { .. }) => {
                            // Somebody else knows better.
                            kept.spare = None;
                            self.core.shut(NoAnswer::NotLeader);
                        }
                        _ if kept.spare.is_none() => self.core.shut(NoAnswer::StoreUnavailable),
                        _ => {}
                    }
                    self.shell.standing.send_replace(Standing::Waiting(Arc::new(error)));
                    self.pause(&mut kept, retry);
                    retry = (retry * 2).min(RETRY_MAX);
                }
            }
        }
        self.core.shut(NoAnswer::Stopping);
        // Dropping the store lets the lock go before anybody is told.
        drop(kept);
        self.shell.standing.send_replace(Standing::Stopped);
    }

    /// Waits for so long, or until the cell is told to stop, and answers questions meanwhile.
    fn pause(&self, kept: &mut Kept, wait: Duration) {
        let until = Instant::now() + wait;
        let mut jobs = Vec::new();
        while !self.stop.load(Ordering::Acquire) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.core.lanes().take(&mut jobs, left);
            let now = kept.clock.beat().now;
            for Job { input, reply, .. } in jobs.drain(..) {
                let Some(reply) = reply else { continue };
                let answer = match (&mut kept.spare, input) {
                    (Some(spare), Input::Call { caller, command: Command::Read(read), .. }) => {
                        spare.look(now, &caller, read)
                    }
                    _ => None,
                };
                // Nobody need wait for it any more.
                let _ = reply.send(answer.ok_or(NoAnswer::StoreUnavailable));
            }
        }
    }

    /// The state as the store holds it, and what hosts have said since: for questions alone, for
    /// nothing that it does can be kept. `None` where the store cannot be read.
    fn spare(&self, kept: &mut Kept) -> Option<Engine> {
        let now = kept.clock.beat().now;
        let rows = kept.store.as_mut()?.peek(now, &self.limits);
        let rows = rows.inspect_err(|error| tracing::warn!(%error, "no questions are answered"));
        let restored = self.restore(0, rows.ok()?, now, kept, &mut Output::default());
        restored.inspect_err(|error| tracing::warn!(%error, "no questions are answered")).ok()
    }

    /// Builds an engine from rows, and tells it what hosts have said.
    fn restore(
        &self,
        epoch: u64,
        rows: Rows,
        now: Timestamp,
        kept: &Kept,
        out: &mut Output,
    ) -> Result<Engine, RestoreError> {
        // The engine begins at the time of the oldest report that it is told again, so that each
        // can be told at the time at which it came.
        let mut reports: Vec<_> = kept.reports.values().cloned().collect();
        reports.sort_by_key(|(at, _)| *at);
        let start = reports.first().map_or(now, |(at, _)| (*at).min(now));
        let mut engine = Engine::restore(self.config.clone(), epoch, rows, start, out)?;
        for (at, report) in reports {
            let report = Box::new(report);
            let input = Input::Report { token: Token(0), report, probe: false };
            engine.handle(at.min(now), input, out);
        }
        Ok(engine)
    }

    /// Takes the lease and builds the engine.
    fn begin(&mut self, kept: &mut Kept) -> Result<Term, TermError> {
        let begun = Instant::now();
        let mut store = (self.opener)(kept.store.take())?;
        let now = kept.clock.beat().now;
        let lease = store.acquire(&self.holder, now)?;
        let rows = store.load(&lease, now, &self.limits)?;
        let first = (self.first_start)(&rows, now)?;
        let mut keys = rows.keys.clone();
        let sandboxes = rows.sandboxes.len();

        let mut out = Output::default();
        let mut engine = self.restore(lease.epoch, rows, now, kept, &mut out)?;
        let caller = Caller { role: Role::Operator, tenant: self.config.default_tenant.clone() };
        for admin in first {
            if let Admin::PutKey(row) | Admin::RenewKey(row) = &admin {
                keys.retain(|held| held.id != row.id);
                keys.push(row.clone());
            }
            let command = Command::Admin(Box::new(admin));
            let input = Input::Call { token: Token(0), caller: caller.clone(), command };
            engine.handle(now, input, &mut out);
        }
        out.replies.clear();
        store.commit(&lease, &out.changes)?;

        self.shell.keys.load(&keys);
        self.shell.set_reader(store.reader());
        self.shell.metrics.observe(&out.observations);
        self.shell.metrics.terms.inc();
        let epoch = lease.epoch;
        tracing::info!(
            epoch,
            sandboxes,
            millis = begun.elapsed().as_millis() as u64,
            "state loaded; this cell leads"
        );
        self.core.handoff().reset();
        let writer = Writer {
            store,
            lease,
            core: Arc::clone(&self.core),
            shell: Arc::clone(&self.shell),
            retention: self.retention,
        };
        let writer = thread::Builder::new()
            .name("plimsoll-writer".to_owned())
            .spawn(move || writer.run())?;
        // Only now, with a writer behind it, may anything of this term leave.
        self.shell.deliver(&[], &mut out.effects);
        self.shell.waiters.wake_all();
        Ok(Term { engine, epoch, writer, waiting: HashMap::default() })
    }

    fn lead(&mut self, mut term: Term, kept: &mut Kept) {
        self.core.lanes().open();
        self.shell.standing.send_replace(Standing::Leading(term.epoch));
        // Loading may have taken long; that was no stop.
        kept.clock.beat();
        let end =
            catch_unwind(AssertUnwindSafe(|| self.serve(&mut term, kept))).unwrap_or(End::Panicked);
        let why = match end {
            End::Stopped => NoAnswer::Stopping,
            End::Failed | End::Gap | End::Panicked => NoAnswer::StoreUnavailable,
        };
        self.core.shut(why);
        if end != End::Stopped {
            tracing::warn!(?end, "the term has ended");
            self.shell.standing.send_replace(Standing::Loading);
        }
        self.core.handoff().close();
        match term.writer.join() {
            Ok(Written { store, error }) => {
                kept.store = Some(store);
                if matches!(error, Some(StoreError::Full { .. })) {
                    // Room does not come by itself. Until it does, what is there can be read.
                    kept.spare = self.spare(kept);
                    if kept.spare.is_some() {
                        self.core.lanes().open_for_questions();
                    }
                }
                if matches!(error, Some(StoreError::Fenced { .. })) {
                    self.core.shut(NoAnswer::NotLeader);
                }
            }
            Err(_) => tracing::error!("the writer panicked; the store is opened anew"),
        }
        if matches!(end, End::Gap | End::Panicked) {
            kept.reports.clear();
        }
        for (_, reply) in term.waiting {
            let _ = reply.send(Err(why));
        }
    }

    fn serve(&self, term: &mut Term, kept: &mut Kept) -> End {
        let mut jobs: Vec<Job> = Vec::new();
        let mut round = Round::default();
        let mut now = kept.clock.beat().now;
        loop {
            let stopping = self.stop.load(Ordering::Acquire);
            let wait = match term.engine.next_wakeup() {
                _ if stopping => Duration::ZERO,
                // A time that has passed already was just tended to: what is left waits a little.
                Some(due) => Duration::from_millis(due.since(now).get().max(1)).min(BEAT_INTERVAL),
                None => BEAT_INTERVAL,
            };
            self.core.lanes().take(&mut jobs, wait);
            if self.core.handoff().has_failed() {
                drop_unapplied(&mut jobs);
                return End::Failed;
            }
            let beat = kept.clock.beat();
            if beat.gap {
                drop_unapplied(&mut jobs);
                return End::Gap;
            }
            now = beat.now;
            self.apply_all(term, kept, now, &mut jobs, &mut round);
            if term.engine.next_wakeup().is_some_and(|due| due <= now) {
                term.engine.handle(now, Input::Tick, &mut round.out);
                term.settle(&mut round);
            }
            if let Some(end) = self.hand_over(kept, &mut round) {
                return end;
            }
            if stopping {
                return End::Stopped;
            }
        }
    }

    /// Applies the jobs of a round, and has the engine read ahead for the next few of them.
    fn apply_all(
        &self,
        term: &mut Term,
        kept: &mut Kept,
        now: Timestamp,
        jobs: &mut Vec<Job>,
        round: &mut Round,
    ) {
        let mut rest = jobs.drain(..);
        while !rest.as_slice().is_empty() {
            term.engine.foresee(rest.as_slice().iter().take(FORESEEN).filter_map(|job| {
                match &job.input {
                    Input::Call { caller, .. } => Some(caller),
                    _ => None,
                }
            }));
            for job in rest.by_ref().take(FORESEEN) {
                self.apply(term, kept, now, job, round);
            }
        }
    }

    /// Applies one job and pairs the replies that it led to with those who wait.
    fn apply(&self, term: &mut Term, kept: &mut Kept, now: Timestamp, job: Job, round: &mut Round) {
        let Job { input, reply, skip_unawaited } = job;
        if skip_unawaited && reply.as_ref().is_some_and(oneshot::Sender::is_closed) {
            return;
        }
        let mut verdict = false;
        let mut token = None;
        let mut report = None;
        match &input {
            Input::Call { token: own, command, .. } => {
                token = Some(*own);
                verdict = is_verdict(command);
                if let Command::Abandon { token } = command {
                    term.waiting.remove(token);
                }
            }
            Input::Report { token: own, report: given, .. } => {
                token = Some(*own);
                report = Some(HostReport::clone(given));
            }
            Input::Register { token: own, .. } => token = Some(*own),
            Input::ProbeFailed { .. }
            | Input::Outcome { .. }
            | Input::Delivered { .. }
            | Input::Requests { .. }
            | Input::Tick => {}
        }
        let begun = verdict.then(Instant::now);
        term.engine.handle(now, input, &mut round.out);
        if let Some(begun) = begun {
            self.shell.metrics.decided(begun.elapsed());
        }
        let mut reply = reply;
        for (to, answer) in round.out.replies.drain(..) {
            let own = token == Some(to);
            if own
                && let Some(report) = report.take()
                && matches!(&answer, Reply::Heartbeat(answer) if answer.accepted)
            {
                kept.reports.insert(report.host.clone(), (now, report));
            }
            let waits = if own { reply.take() } else { term.waiting.remove(&to) };
            if let Some(waits) = waits {
                round.answers.push((waits, answer));
            }
        }
        if let (Some(token), Some(reply)) = (token, reply) {
            term.waiting.insert(token, reply);
        }
    }

    /// Hands the round to the writer.
    fn hand_over(&self, kept: &mut Kept, round: &mut Round) -> Option<End> {
        for change in &round.out.changes {
            if let Change::HostGone(host) = change {
                kept.reports.remove(host);
            }
        }
        loop {
            let put = self.core.handoff().put(&mut round.out, &mut round.answers, BEAT_INTERVAL);
            match put {
                Ok(Put::Taken(dropped)) => {
                    self.shell.metrics.refusal_rows_dropped.inc_by(dropped);
                    return None;
                }
                Ok(Put::Free) => {
                    let Output { effects, observations, .. } = &mut round.out;
                    self.shell.deliver(&[], effects);
                    self.shell.metrics.observe(observations);
                    self.shell.mail.post(&mut round.answers);
                    round.out.clear();
                    return None;
                }
                Err(NotPut::NoRoom) => {
                    if kept.clock.beat().gap {
                        round.refuse(NoAnswer::StoreUnavailable);
                        return Some(End::Gap);
                    }
                }
                Err(NotPut::Failed) => {
                    round.refuse(NoAnswer::StoreUnavailable);
                    return Some(End::Failed);
                }
            }
        }
    }
}

/// One round's output.
#[derive(Default)]
struct Round {
    out: Output,
    answers: Vec<Owed>,
}

impl Round {
    fn refuse(&mut self, why: NoAnswer) {
        for (to, _) in self.answers.drain(..) {
            let _ = to.send(Err(why));
        }
        self.out.clear();
    }
}

/// An engine at work.
struct Term {
    engine: Engine,
    epoch: u64,
    writer: thread::JoinHandle<Written>,
    /// Who waits for which reply.
    waiting: HashMap<Token, oneshot::Sender<Answer>, FixedState>,
}

impl Term {
    /// Pairs the replies that have come with those who wait for them.
    fn settle(&mut self, round: &mut Round) {
        for (token, reply) in round.out.replies.drain(..) {
            if let Some(to) = self.waiting.remove(&token) {
                round.answers.push((to, reply));
            }
        }
    }
}

/// Whether the time inside the engine counts as a decision.
fn is_verdict(command: &Command) -> bool {
    matches!(
        command,
        Command::Create(_)
            | Command::Fork(_)
            | Command::Resume { .. }
            | Command::Start { .. }
            | Command::Reserve(_)
            | Command::ReserveBatch(_)
    )
}

/// Answers jobs that were taken and not applied.
fn drop_unapplied(jobs: &mut Vec<Job>) {
    for job in jobs.drain(..) {
        if let Some(reply) = job.reply {
            let _ = reply.send(Err(NoAnswer::StoreUnavailable));
        }
    }
}
