//! Webhooks: every event reaches every endpoint that wants it, at least once and in order.
//!
//! Events are written in the transaction of what caused them, and each endpoint has a cursor: up to
//! there every event was delivered or given up on. Nothing else has to survive a crash. `feed`
//! watches the log and runs a `worker` for each endpoint that has something to hear; a worker sends
//! one event after the other, so that order is kept and a receiver that is down holds up nobody
//! but itself. When an event is tried again and when that ends is the policy's to say
//! ([`plimsoll_policy::delivery`]).
//!
//! Cursors are written by the store's own `record`, in the writer's thread and under its lease, and
//! not through the engine: the engine decides nothing by them, and a settings row that carried a
//! cursor of its own could throw a delivery back. A cursor only grows, so that a stale one that is
//! written late changes nothing. What must outlive it (that a notice of the quota ladder got
//! through) is durable before the cursor moves.

mod address;
mod feed;
mod send;
mod sign;
mod time;
mod worker;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plimsoll_engine::rows::{EndpointRow, EventRow};
use plimsoll_policy::delivery::{Delivery, DeliveryRule, Next, Outcome};
use plimsoll_store::{DeliveryOutcome, DeliveryRow};
use plimsoll_types::{EndpointId, EventId, Timestamp};
use tokio::sync::Semaphore;

pub(crate) use address::{check_names, check_url};
pub(crate) use feed::run;
pub(crate) use send::{Attempt, Verdict};
pub(crate) use sign::{SECRET_OVERLAP, new_secret};
pub(crate) use time::Time;

/// Most endpoints of one tenant, and of operators.
pub(crate) const ENDPOINTS_PER_OWNER_MAX: usize = 50;
/// Most endpoints of a cell: a task and some KiB each while they have something to hear.
pub(crate) const ENDPOINTS_MAX: usize = 10_000;
/// Requests under way to endpoints that take what they are sent.
const SENDING_MAX: usize = 192;
/// Requests under way to endpoints whose last attempt failed. Apart from the others, so that many
/// receivers which let every request run into its timeout hold up none that works.
const RETRYING_MAX: usize = 64;
/// Requests of either kind that have not been answered promptly. They wait on apart from the others,
/// so that receivers which hang hold up nobody, new ones and ones that are back included. With the
/// other two half of the files that a process may open by default.
const SLOW_MAX: usize = 256;
/// A receiver that works answers within this: it has nothing to do but to take note.
const PROMPT: Duration = Duration::from_secs(1);
/// Test events under way: people press a button.
const TESTS_MAX: usize = 16;
/// Questions to the store at once: as many as it has connections for reading.
const READS_MAX: usize = 4;

/// How far an endpoint has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    delivery: Delivery,
    /// The cursor that the store has.
    durable: EventId,
}

/// What workers, the feed and the API's test deliveries share.
#[derive(Debug)]
pub(crate) struct Hooks {
    sender: send::Sender,
    rule: DeliveryRule,
    sending: Semaphore,
    retrying: Semaphore,
    slow: Semaphore,
    tests: Semaphore,
    reads: Semaphore,
    places: Mutex<HashMap<EndpointId, (Arc<EndpointRow>, Place)>>,
}

impl Hooks {
    /// What deliveries need.
    ///
    /// # Errors
    /// When the HTTP client cannot be set up.
    pub(crate) fn new(private: bool, time: Time) -> Result<Self, reqwest::Error> {
        Ok(Self {
            sender: send::Sender::new(private, time)?,
            rule: DeliveryRule::default(),
            sending: Semaphore::new(SENDING_MAX),
            retrying: Semaphore::new(RETRYING_MAX),
            slow: Semaphore::new(SLOW_MAX),
            tests: Semaphore::new(TESTS_MAX),
            reads: Semaphore::new(READS_MAX),
            places: Mutex::default(),
        })
    }

    /// The time that deliveries go by.
    pub(crate) fn time(&self) -> &Time {
        &self.sender.time
    }

    /// Sends an event once, outside the order of the log; `None` when too many are under way.
    pub(crate) async fn try_out(&self, row: &EndpointRow, event: &EventRow) -> Option<Attempt> {
        let _room = self.tests.try_acquire().ok()?;
        Some(self.sender.attempt(row, event).await)
    }

    /// Sends an event once, when there is room for a request.
    async fn send(&self, row: &EndpointRow, event: &EventRow, failing: bool) -> Attempt {
        let pool = if failing { &self.retrying } else { &self.sending };
        // Nobody closes them.
        let prompt = pool.acquire().await;
        let mut attempt = std::pin::pin!(self.sender.attempt(row, event));
        let slow = async {
            tokio::time::sleep(PROMPT).await;
            self.slow.acquire().await
        };
        let slow = tokio::select! {
            biased;
            attempt = &mut attempt => return attempt,
            slow = slow => slow,
        };
        drop(prompt);
        let attempt = attempt.await;
        drop(slow);
        attempt
    }

    fn places<T>(
        &self,
        work: impl FnOnce(&mut HashMap<EndpointId, (Arc<EndpointRow>, Place)>) -> T,
    ) -> T {
        work(&mut self.places.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn place(&self, id: EndpointId) -> Option<Place> {
        self.places(|places| places.get(&id).map(|(_, place)| *place))
    }

    /// Changes an endpoint's place; `None` for one that is no more.
    fn change_place<T>(&self, id: EndpointId, change: impl FnOnce(&mut Place) -> T) -> Option<T> {
        self.places(|places| places.get_mut(&id).map(|(_, place)| change(place)))
    }

    /// Takes what became of an attempt, and says what follows; `None` for an endpoint that is no
    /// more.
    fn attempted(&self, id: EndpointId, attempt: &Attempt) -> Option<Next> {
        let outcome = match &attempt.verdict {
            Verdict::Taken => Outcome::Taken,
            Verdict::Gone => Outcome::Gone,
            Verdict::Failed { retry_after, .. } => Outcome::Failed { retry_after: *retry_after },
        };
        let draw = getrandom::u32().unwrap_or_default();
        self.change_place(id, |place| {
            place.delivery.attempted(attempt.at, outcome, draw, &self.rule)
        })
    }
}

/// The log's row of an attempt.
pub(crate) fn delivery(
    row: &EndpointRow,
    event: &EventRow,
    number: u32,
    attempt: &Attempt,
    outcome: DeliveryOutcome,
    next_attempt_at: Option<Timestamp>,
) -> DeliveryRow {
    DeliveryRow {
        endpoint: row.id,
        event: event.id,
        kind: event.kind.clone(),
        attempt: number,
        at: attempt.at,
        duration_millis: attempt.took.get(),
        outcome,
        status: attempt.status,
        detail: match &attempt.verdict {
            Verdict::Taken => None,
            Verdict::Gone => Some("the receiver answered 410 Gone".to_owned()),
            Verdict::Failed { detail, .. } => Some(detail.clone()),
        },
        next_attempt_at,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;

    use super::*;

    /// A receiver that takes connections and answers, or does not; and word of each.
    async fn receiver(answer: Option<&'static str>) -> (String, mpsc::UnboundedReceiver<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (word, words) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                if let Some(answer) = answer {
                    let mut request = [0; 4096];
                    let _ = stream.read(&mut request).await;
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
                let _ = word.send(());
                held.push(stream);
            }
        });
        (url, words)
    }

    fn endpoint(url: &str) -> EndpointRow {
        EndpointRow {
            id: EndpointId(1),
            tenant: None,
            url: url.to_owned(),
            events: Vec::new(),
            description: String::new(),
            secrets: Vec::new(),
            disabled: None,
            created_at: Timestamp(0),
            cursor: EventId(0),
            failing_since: None,
        }
    }

    #[tokio::test]
    async fn receivers_that_hang_hold_up_none_that_answers() {
        let event = EventRow {
            id: EventId(1),
            at: Timestamp(0),
            kind: "webhook.test".to_owned(),
            tenant: None,
            data: serde_json::json!({}),
        };
        let answers = "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
        for failing in [false, true] {
            let hooks = Arc::new(Hooks::new(true, Time::default()).unwrap());
            let (hangs, mut reached) = receiver(None).await;
            let most = if failing { RETRYING_MAX } else { SENDING_MAX };
            let mut hanging = JoinSet::new();
            for _ in 0..most {
                let (hooks, row, event) = (Arc::clone(&hooks), endpoint(&hangs), event.clone());
                hanging.spawn(async move { hooks.send(&row, &event, failing).await });
            }
            for _ in 0..most {
                reached.recv().await.unwrap();
            }
            let (works, _) = receiver(Some(answers)).await;
            let attempt = hooks.send(&endpoint(&works), &event, failing).await;
            assert_eq!(attempt.verdict, Verdict::Taken);
            assert!(hanging.try_join_next().is_none(), "it waited for one that hangs");
        }
    }
}
