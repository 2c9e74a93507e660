//! The thread that owns the host's state machine and its journal.
//!
//! Inputs that have come in together are handled together: their journal entries go to disk in one
//! write and one sync, and only then do their effects begin. Questions are answered after that, so
//! that no report speaks of a command that a crash could still take back.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_host::{Host, HostEffect, HostEvent, HostInput, HostTime, JournalEntry, Token};
use plimsoll_types::{HostCommand, HostOutcome};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::calls::Calls;
use crate::clock;
use crate::journal::{Journal, JournalError};
use crate::metrics::Metrics;

/// Most messages that wait for the thread. At a few microseconds each this is some ten
/// milliseconds of work; what does not fit is refused rather than queued.
const QUEUE_MAX: usize = 4096;
/// Most messages of one batch, so that a flood delays nobody's answer by more than a sync.
const BATCH_MAX: usize = 512;

type Question = Box<dyn FnOnce(&mut Host, HostTime) + Send>;

enum Message {
    Input(HostInput),
    Command(Box<HostCommand>, oneshot::Sender<HostOutcome>),
    Question(Question),
    Stop,
}

/// The thread cannot take more, or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Busy;

/// A way to the thread. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Core {
    sender: mpsc::Sender<Message>,
}

/// What the thread is made of.
pub(crate) struct Parts {
    pub(crate) host: Host,
    pub(crate) journal: Journal,
    pub(crate) calls: Calls,
    pub(crate) heartbeat: Arc<Notify>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Core {
    /// Starts the thread. `ended` hears of its end, with the reason where it could not go on.
    pub(crate) fn start(
        make: impl FnOnce(Self) -> Parts,
        ended: oneshot::Sender<Result<(), JournalError>>,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        let core = Self { sender };
        let parts = make(core.clone());
        std::thread::Builder::new().name("plimsoll-host".to_owned()).spawn(move || {
            let result = Owner { parts, replies: BTreeMap::new(), next_token: 1 }.run(receiver);
            // Nobody listens where the agent itself has ended first.
            let _ = ended.send(result);
        })?;
        Ok(core)
    }

    /// Sends an input, waiting for room.
    pub(crate) async fn input(&self, input: HostInput) {
        // A thread that has ended takes no more inputs; the agent ends with it.
        let _ = self.sender.send(Message::Input(input)).await;
    }

    /// Sends a command where there is room, and brings its outcome.
    pub(crate) fn command(
        &self,
        command: Box<HostCommand>,
    ) -> Result<oneshot::Receiver<HostOutcome>, Busy> {
        let (reply, outcome) = oneshot::channel();
        self.sender.try_send(Message::Command(command, reply)).map_err(|_| Busy)?;
        Ok(outcome)
    }

    /// Asks the state machine something, once all that came before is durable.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Host, HostTime) -> T + Send + 'static,
    ) -> Result<T, Busy> {
        let (reply, answer) = oneshot::channel();
        let question: Question = Box::new(move |host, now| {
            // Whoever asked may have left.
            let _ = reply.send(question(host, now));
        });
        self.sender.send(Message::Question(question)).await.map_err(|_| Busy)?;
        answer.await.map_err(|_| Busy)
    }

    /// Ends the thread once what came before is done.
    pub(crate) async fn stop(&self) {
        let _ = self.sender.send(Message::Stop).await;
    }
}

struct Owner {
    parts: Parts,
    replies: BTreeMap<Token, oneshot::Sender<HostOutcome>>,
    next_token: u64,
}

impl Owner {
    fn run(mut self, mut receiver: mpsc::Receiver<Message>) -> Result<(), JournalError> {
        let mut batch = Vec::new();
        let mut effects = Vec::new();
        let mut questions = Vec::new();
        while receiver.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
            let mut stop = false;
            for message in batch.drain(..) {
                match message {
                    Message::Input(input) => {
                        self.parts.host.handle(clock::now(), input, &mut effects);
                    }
                    Message::Command(command, reply) => {
                        let token = Token(self.next_token);
                        self.next_token += 1;
                        self.replies.insert(token, reply);
                        let input = HostInput::Command { token, command };
                        self.parts.host.handle(clock::now(), input, &mut effects);
                    }
                    Message::Question(question) => questions.push(question),
                    Message::Stop => stop = true,
                }
            }
            self.carry_out(&mut effects)?;
            for question in questions.drain(..) {
                question(&mut self.parts.host, clock::now());
            }
            if stop {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Writes what the effects announce, then lets them begin.
    fn carry_out(&mut self, effects: &mut Vec<HostEffect>) -> Result<(), JournalError> {
        let parts = &mut self.parts;
        let mut entries: Vec<JournalEntry> = Vec::new();
        effects.retain_mut(|effect| match effect {
            HostEffect::Journal(entry) => {
                entries.push(entry.clone());
                false
            }
            _ => true,
        });
        parts.journal.append(&entries)?;
        if parts.journal.wants_rewrite() {
            parts.journal.rewrite(&parts.host.snapshot())?;
        }
        for effect in effects.drain(..) {
            match effect {
                HostEffect::Journal(_) => {}
                HostEffect::Driver(call) => parts.calls.begin(call),
                HostEffect::Answer { token, outcome } => {
                    if let Some(reply) = self.replies.remove(&token) {
                        // The cell may have given up on the answer.
                        let _ = reply.send(outcome);
                    }
                }
                HostEffect::HeartbeatNow => parts.heartbeat.notify_one(),
                HostEffect::Event(event) => {
                    parts.metrics.event(&event);
                    log(&event);
                }
            }
        }
        Ok(())
    }
}

fn log(event: &HostEvent) {
    match event {
        HostEvent::GateShut { reason } => tracing::warn!(reason, "the gate is shut"),
        HostEvent::GateOpened => tracing::info!("the gate is open again"),
        HostEvent::PressurePause { id, charge, reason } => {
            tracing::warn!(guest = %id, %charge, reason, "pausing a guest under memory pressure");
        }
        HostEvent::PressureKill { id, charge, reason } => {
            tracing::warn!(guest = %id, %charge, reason, "ending a guest under memory pressure");
        }
        HostEvent::PressureNoVictim { reason } => {
            tracing::error!(reason, "memory pressure, and no guest that may be touched");
        }
        HostEvent::UnexpectedEnded { id } => {
            tracing::warn!(guest = %id, "ending a guest that the cell does not know");
        }
        HostEvent::UnexpectedKept { id } => {
            tracing::warn!(
                guest = %id,
                "a stateful guest that the cell does not know is kept until a command ends it"
            );
        }
        HostEvent::NotFound { id } => tracing::warn!(guest = %id, "a guest is here no more"),
        HostEvent::EndFailed { id, detail } => {
            tracing::warn!(guest = %id, detail, "a guest could not be ended; trying again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use plimsoll_host::{HostConfig, Sample};
    use plimsoll_types::{
        BasisPoints, Counted, Driver, Fence, HostId, HostOp, Mib, MilliCpu, PoolName, SandboxId,
    };

    use super::*;
    use crate::calls::Drivers;
    use crate::config::CallTimeouts;

    fn host() -> Host {
        let name = HostId::new("host-1").unwrap();
        let pool = PoolName::new("local").unwrap();
        let mut config = HostConfig::new(name, pool, "boot-1".into(), "machine-1".into());
        config.drivers = [Driver::Process].into_iter().collect();
        Host::new(config)
    }

    fn sample() -> Sample {
        Sample {
            memory_total: Ok(Mib(8192)),
            memory_used: Ok(Mib(0)),
            memory_available: Ok(Mib(8192)),
            cpu_total: Ok(MilliCpu(1000)),
            cpu_used: Ok(MilliCpu(0)),
            pressure_some: Ok(BasisPoints(0)),
            pressure_full: Ok(BasisPoints(0)),
            counted: Counted::new(),
            guests: vec![],
            reservations: vec![],
        }
    }

    #[tokio::test]
    async fn what_cannot_be_written_down_is_not_begun() {
        let metrics = Arc::new(Metrics::new());
        let (ended, end) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        let drivers = Arc::new(Drivers::new());
        let core = Core::start(
            |core| Parts {
                host: host(),
                journal: Journal::on_full_disk(),
                calls: Calls::new(
                    core,
                    drivers,
                    CallTimeouts::default(),
                    Arc::clone(&metrics),
                    runtime,
                ),
                heartbeat: Arc::default(),
                metrics: Arc::clone(&metrics),
            },
            ended,
        )
        .unwrap();
        core.input(HostInput::Adopted { found: vec![], foreign: vec![] }).await;
        core.input(HostInput::Sample(Box::new(sample()))).await;
        let fence = Fence { epoch: 1, number: 1 };
        let op = HostOp::End { id: SandboxId(1), attempt: 1 };
        let command = HostCommand { fence, deadline_uptime_millis: None, op };
        let outcome = core.command(Box::new(command)).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(60), end).await.unwrap();
        assert!(matches!(ended, Ok(Err(JournalError::Io { .. }))), "{ended:?}");
        assert!(outcome.await.is_err(), "no answer that a crash could take back");
        assert!(core.ask(|_, _| ()).await.is_err());
    }
}
