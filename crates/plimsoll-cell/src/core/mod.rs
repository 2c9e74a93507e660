//! The engine's loop: calls in, batches out, and the rebuild after a failure.
//!
//! Two threads work on one cell's state. The engine's thread takes calls from the [`Lanes`],
//! applies them one after the other, and appends what came of them to the batch under way. The
//! writer's thread makes one batch durable after the other and only then lets its answers and
//! effects out. While one batch is being committed the next accumulates, so that the price of a
//! commit is shared by all who came in the meantime.

mod handoff;
mod lanes;
mod term;
mod writer;

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_engine::rows::Role;
use plimsoll_engine::{Caller, Command, Input, Read, Reply, Token};
use plimsoll_store::{DeliveryRow, Progress};
use plimsoll_types::{EndpointId, EventId, TenantId};
use tokio::sync::oneshot;

pub(crate) use handoff::Owed;
use handoff::{Handoff, Record};
use lanes::{Job, Lane, Lanes};
pub use term::TermError;
pub(crate) use term::{Opener, Standing, Terms};

/// Why the engine gave no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// The lane is full.
    #[error("the cell has more calls waiting than it takes")]
    Overloaded,
    /// The state is not loaded yet.
    #[error("the cell is loading its state")]
    Loading,
    /// The store failed; whether the call was applied is unknown.
    #[error("the store failed, and whether the call was applied is not known")]
    StoreUnavailable,
    /// Another replica leads.
    #[error("another replica leads this cell")]
    NotLeader,
    /// The cell is shutting down.
    #[error("the cell is shutting down")]
    Stopping,
}

/// What a call comes back with.
pub(crate) type Answer = Result<Reply, NoAnswer>;

/// The way into the engine for tasks.
#[derive(Debug)]
pub(crate) struct Core {
    lanes: Lanes,
    handoff: Handoff,
    tokens: AtomicU64,
}

impl Core {
    /// A core whose lanes are shut until a term begins.
    pub(crate) fn new() -> Self {
        Self {
            lanes: Lanes::shut_for(NoAnswer::Loading),
            handoff: Handoff::default(),
            tokens: AtomicU64::new(1),
        }
    }

    /// Wakes the engine's thread, to look at what is not a job.
    pub(crate) fn wake(&self) {
        self.lanes.kick();
    }

    /// Takes nothing in any more, and answers what waits in the lanes.
    fn shut(&self, why: NoAnswer) {
        for job in self.lanes.shut(why) {
            if let Some(reply) = job.reply {
                let _ = reply.send(Err(why));
            }
        }
    }

    fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    fn handoff(&self) -> &Handoff {
        &self.handoff
    }

    /// Has the writer keep what became of deliveries, and waits until it is durable.
    ///
    /// # Errors
    /// When too many records wait, or the store failed.
    pub(crate) async fn record(
        &self,
        deliveries: Vec<DeliveryRow>,
        progress: Vec<Progress>,
    ) -> Result<(), NoAnswer> {
        let (done, durable) = oneshot::channel();
        self.handoff.put_record(Record { deliveries, progress, done })?;
        durable.await.map_err(|_| NoAnswer::StoreUnavailable)
    }

    /// Tells the engine what became of a notice at one endpoint, and waits until what came of that is durable.
    ///
    /// # Errors
    /// When the lane is full, or the store failed.
    pub(crate) async fn notice(
        &self,
        caller: Caller,
        event: EventId,
        endpoint: EndpointId,
        delivered: bool,
    ) -> Result<(), NoAnswer> {
        let input = Input::Delivered { event, endpoint, delivered };
        self.lanes.push(&Lane::Operators, Job { input, reply: None, skip_unawaited: false })?;
        // Nothing answers that input. A question behind it in the same lane is answered once
        // everything before it is durable.
        self.call(caller, Command::Read(Read::Counts)).await.map(drop)
    }

    /// Hands over how many requests tenants have made.
    ///
    /// # Errors
    /// When the lane is full or nothing is taken in.
    pub(crate) fn requests(&self, counts: Vec<(TenantId, u64)>) -> Result<(), NoAnswer> {
        let input = Input::Requests { counts };
        self.lanes.push(&Lane::Operators, Job { input, reply: None, skip_unawaited: false })
    }

    fn token(&self) -> Token {
        Token(self.tokens.fetch_add(1, Ordering::Relaxed))
    }

    /// Asks the engine and waits for its durable reply. How long that takes depends on the
    /// command: a call that waits for capacity is answered when its wait ends. Dropping the future
    /// abandons the call.
    pub(crate) async fn call(&self, caller: Caller, command: Command) -> Answer {
        let lane = lane_of(&caller, &command);
        let abandonable = matches!(lane, Lane::Creates(_));
        let skip_unawaited = abandonable || matches!(command, Command::Read(_));
        let token = self.token();
        let (reply, answer) = oneshot::channel();
        let abandon = abandonable.then(|| caller.clone());
        let input = Input::Call { token, caller, command };
        self.lanes.push(&lane, Job { input, reply: Some(reply), skip_unawaited })?;
        Awaited { core: self, token, abandon, answer }.answer().await
    }

    /// Sends a command whose reply nobody needs.
    ///
    /// # Errors
    /// When its lane is full or nothing is taken in.
    pub(crate) fn send(&self, caller: Caller, command: Command) -> Result<(), NoAnswer> {
        let lane = lane_of(&caller, &command);
        let input = Input::Call { token: self.token(), caller, command };
        self.lanes.push(&lane, Job { input, reply: None, skip_unawaited: false })
    }

    /// Hands over what a host said, built with the token of its answer, and waits for that.
    pub(crate) async fn host(&self, input: impl FnOnce(Token) -> Input) -> Answer {
        let (reply, answer) = oneshot::channel();
        let input = input(self.token());
        // An agent that died while it asked for its place must not get one above its successor's.
        let skip_unawaited = matches!(input, Input::Register { .. });
        self.lanes.push(&Lane::Hosts, Job { input, reply: Some(reply), skip_unawaited })?;
        answer.await.unwrap_or(Err(NoAnswer::StoreUnavailable))
    }

    /// Hands over what became of a call to a host.
    ///
    /// # Errors
    /// When the lane is full or nothing is taken in; the input comes back with the reason.
    pub(crate) fn host_says(&self, input: Input) -> Result<(), (NoAnswer, Input)> {
        let job = Job { input, reply: None, skip_unawaited: false };
        self.lanes.push_back(&Lane::Hosts, job).map_err(|(why, job)| (why, job.input))
    }
}

/// Which lane a command takes.
fn lane_of(caller: &Caller, command: &Command) -> Lane {
    match command {
        Command::Delete { .. }
        | Command::Pause { .. }
        | Command::Stop { .. }
        | Command::Withdraw { .. }
        | Command::Commit { .. }
        | Command::Renew { .. }
        | Command::Release { .. }
        | Command::Abandon { .. } => Lane::Releases(caller.tenant.clone()),
        Command::Admin(_) => Lane::Operators,
        Command::Read(_) | Command::Explain(_) | Command::Patch(_)
            if caller.role == Role::Operator =>
        {
            Lane::Operators
        }
        Command::Create(_)
        | Command::Fork(_)
        | Command::Patch(_)
        | Command::Resume { .. }
        | Command::Start { .. }
        | Command::Keepalive { .. }
        | Command::Touch { .. }
        | Command::Reserve(_)
        | Command::ReserveBatch(_)
        | Command::Explain(_)
        | Command::Read(_) => Lane::Creates(caller.tenant.clone()),
    }
}

/// A reply under way. Dropped before it came, it abandons the call.
struct Awaited<'a> {
    core: &'a Core,
    token: Token,
    abandon: Option<Caller>,
    answer: oneshot::Receiver<Answer>,
}

impl Awaited<'_> {
    async fn answer(mut self) -> Answer {
        let answer = (&mut self.answer).await;
        self.abandon = None;
        // A job that was dropped without an answer fell to a rebuild.
        answer.unwrap_or(Err(NoAnswer::StoreUnavailable))
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if let Some(caller) = self.abandon.take() {
            // Closed first: a job that the engine has not begun is then skipped, and one that it
            // has begun comes before what is sent now.
            self.answer.close();
            // A core that takes nothing in has dropped the call with the rest.
            let _ = self.core.send(caller, Command::Abandon { token: self.token });
        }
    }
}
