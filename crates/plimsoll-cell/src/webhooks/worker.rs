//! One endpoint's deliveries, one after the other.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::rows::{EndpointRow, EventRow, Role};
use plimsoll_engine::{Admin, Caller, Command, Read, Reply};
use plimsoll_policy::delivery::{NOTICES, Next, Off};
use plimsoll_store::{DeliveryOutcome, DeliveryRow, EventQuery, Progress, Reader, StoreError};
use plimsoll_types::Timestamp;
use tokio::sync::watch;

use super::{Attempt, Hooks, delivery};
use crate::app::App;

/// Events read at once: some 50 KiB.
const PAGE: usize = 100;
/// Deliveries in a row that are written together: so many are sent again after a crash.
const RECORD_MAX: usize = 32;
/// Attempts that are looked at for where a failing endpoint stood before a restart: the head of its
/// log, but for test events.
const RESUME_LOOKED_AT: usize = 50;
/// A record that finds too many others waiting is handed over again after this long.
const RECORD_INTERVAL: Duration = Duration::from_millis(100);

/// Why a worker stops before it has delivered everything.
#[derive(Debug)]
pub(super) enum Stop {
    /// The endpoint was switched off.
    Disabled,
    /// The store, or the engine, gives no answer; it is tried again.
    Lost,
}

/// How an event ended.
enum Sent {
    /// On to the next.
    Next,
    /// The endpoint is to be switched off.
    Disable(String),
}

/// Delivers to one endpoint until it has come as far as the log.
pub(super) struct Worker {
    pub(super) app: Arc<App>,
    /// The endpoint as it is set now.
    pub(super) row: watch::Receiver<Arc<EndpointRow>>,
    /// Attempts that are not durable yet.
    unwritten: Vec<DeliveryRow>,
}

impl Worker {
    pub(super) fn new(app: Arc<App>, row: watch::Receiver<Arc<EndpointRow>>) -> Self {
        Self { app, row, unwritten: Vec::new() }
    }

    fn hooks(&self) -> &Hooks {
        &self.app.hooks
    }

    fn current(&mut self) -> Arc<EndpointRow> {
        Arc::clone(&self.row.borrow_and_update())
    }

    pub(super) async fn run(mut self) -> Result<(), Stop> {
        loop {
            let row = self.current();
            let place = self.hooks().place(row.id).ok_or(Stop::Lost)?;
            let after = Some(place.delivery.cursor());
            let query = EventQuery { after, tenant: row.tenant.clone(), limit: PAGE };
            let page = read(&self.app, move |reader| reader.events(&query)).await?;
            for event in &page.items {
                if !row.wants(event) {
                    continue;
                }
                match self.deliver(event).await? {
                    Sent::Next => {}
                    Sent::Disable(reason) => {
                        self.disable(&row, reason).await?;
                        return Err(Stop::Disabled);
                    }
                }
                if self.unwritten.len() >= RECORD_MAX {
                    self.write().await?;
                }
            }
            if let Some(through) = page.through {
                self.hooks().change_place(row.id, |place| place.delivery.pass(through));
            }
            // A long stretch of events that the endpoint does not want moves the cursor too.
            if !self.unwritten.is_empty() || page.more {
                self.write().await?;
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    /// Delivers one event, however long it takes.
    async fn deliver(&mut self, event: &EventRow) -> Result<Sent, Stop> {
        self.begin(event).await?;
        loop {
            let id = self.row.borrow().id;
            let place = self.hooks().place(id).ok_or(Stop::Lost)?;
            let head = place.delivery.head().ok_or(Stop::Lost)?;
            if let Some(due) = head.due {
                self.wait(due).await?;
            }
            let row = self.current();
            if !row.wants(event) {
                return Ok(Sent::Next);
            }
            let failing = place.delivery.failing_since().is_some();
            let attempt = self.hooks().send(&row, event, failing).await;
            let next = self.hooks().attempted(row.id, &attempt).ok_or(Stop::Lost)?;
            let (outcome, due) = match next {
                Next::Advance { .. } => (DeliveryOutcome::Delivered, None),
                Next::RetryAt(due) => (DeliveryOutcome::Failed, Some(due)),
                Next::GiveUp | Next::Disable(_) => (DeliveryOutcome::GivenUp, None),
            };
            self.note(&row, event, head.attempts + 1, &attempt, outcome, due);
            if let Some(came) = next.tells() {
                self.tell(&row, event, came).await?;
            }
            if next.is_written_at_once() {
                self.write().await?;
            }
            match next {
                Next::RetryAt(_) => {}
                Next::Advance { .. } | Next::GiveUp => return Ok(Sent::Next),
                Next::Disable(Off::Gone) => {
                    return Ok(Sent::Disable("the receiver answered 410 Gone".to_owned()));
                }
                Next::Disable(Off::Failing) => {
                    let hours = self.hooks().rule.failing_max.get() / 3_600_000;
                    return Ok(Sent::Disable(format!("nothing was taken for {hours} hours")));
                }
            }
        }
    }

    /// Goes on to an event, from where the attempts at it stood before a restart.
    async fn begin(&mut self, event: &EventRow) -> Result<(), Stop> {
        let id = self.row.borrow().id;
        let place = self.hooks().place(id).ok_or(Stop::Lost)?;
        let mut last = None;
        if place.delivery.failing_since().is_some() {
            let page = read(&self.app, move |reader| reader.deliveries(id, None, RESUME_LOOKED_AT))
                .await?;
            let row = page.items.into_iter().find(|row| row.event == event.id);
            last = row.filter(|row| row.outcome == DeliveryOutcome::Failed);
        }
        let last = last.map(|row| (row.attempt, row.next_attempt_at));
        let (now, rule) = (self.hooks().time().now(), self.hooks().rule);
        let begun = self.hooks().change_place(id, |place| {
            place.delivery.begin(event.id, last, now, &rule);
        });
        begun.ok_or(Stop::Lost)
    }

    /// Waits for the next attempt. A new address or secret is tried at once.
    async fn wait(&mut self, due: Timestamp) -> Result<(), Stop> {
        let before = self.current();
        let app = Arc::clone(&self.app);
        let mut time = std::pin::pin!(app.hooks.time().until(due));
        loop {
            tokio::select! {
                biased;
                () = &mut time => return Ok(()),
                changed = self.row.changed() => changed.map_err(|_| Stop::Disabled)?,
            }
            let now = self.current();
            if (&now.url, &now.secrets) != (&before.url, &before.secrets) {
                return Ok(());
            }
        }
    }

    fn note(
        &mut self,
        row: &EndpointRow,
        event: &EventRow,
        number: u32,
        attempt: &Attempt,
        outcome: DeliveryOutcome,
        next: Option<Timestamp>,
    ) {
        self.app.shell.metrics.webhook_attempted(outcome);
        self.unwritten.push(delivery(row, event, number, attempt, outcome, next));
    }

    /// Makes attempts and the cursor durable.
    async fn write(&mut self) -> Result<(), Stop> {
        let id = self.row.borrow().id;
        let place = self.hooks().place(id).ok_or(Stop::Lost)?;
        let (cursor, failing_since) = (place.delivery.cursor(), place.delivery.failing_since());
        let step = Progress { endpoint: id, cursor, failing_since };
        record(&self.app, std::mem::take(&mut self.unwritten), vec![step]).await?;
        self.hooks().change_place(id, |now| now.durable = now.durable.max(cursor));
        Ok(())
    }

    /// Tells the ladder what became of a notice to the endpoint's own tenant, and waits until it
    /// is durable that it was told: only then may the cursor move.
    async fn tell(&self, row: &EndpointRow, event: &EventRow, came: bool) -> Result<(), Stop> {
        let own = row.tenant.is_some() && row.tenant == event.tenant;
        if !own || !NOTICES.contains(&event.kind.as_str()) {
            return Ok(());
        }
        let told = self.app.core.notice(operator(&self.app), event.id, row.id, came).await;
        told.map_err(|_| Stop::Lost)
    }

    /// Switches the endpoint off, unless somebody has changed or removed it meanwhile.
    async fn disable(&self, row: &EndpointRow, reason: String) -> Result<(), Stop> {
        let _one_at_a_time = self.app.changes.lock().await;
        let rows = endpoints(&self.app).await?;
        let Some(mut now) = rows.into_iter().find(|now| now.id == row.id) else { return Ok(()) };
        if now.disabled.is_some() || now.url != row.url {
            return Ok(());
        }
        tracing::warn!(endpoint = %row.id, reason, "a webhook endpoint is switched off");
        now.disabled = Some(reason);
        let command = Command::Admin(Box::new(Admin::PutEndpoint(now)));
        match self.app.core.call(operator(&self.app), command).await {
            Ok(Reply::Done) => Ok(()),
            _ => Err(Stop::Lost),
        }
    }
}

fn operator(app: &App) -> Caller {
    Caller { role: Role::Operator, tenant: app.config.engine.default_tenant.clone() }
}

/// Every endpoint.
pub(super) async fn endpoints(app: &App) -> Result<Vec<EndpointRow>, Stop> {
    match app.core.call(operator(app), Command::Read(Read::Endpoints(None))).await {
        Ok(Reply::Endpoints(rows)) => Ok(rows),
        _ => Err(Stop::Lost),
    }
}

/// Asks the readers' side of the store, a bounded number of questions at once.
pub(super) async fn read<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&dyn Reader) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Stop> {
    let _turn = app.hooks.reads.acquire().await;
    app.read(question).await.map_err(|_| Stop::Lost)
}

/// Has the writer keep what became of deliveries.
pub(super) async fn record(
    app: &App,
    deliveries: Vec<DeliveryRow>,
    progress: Vec<Progress>,
) -> Result<(), Stop> {
    loop {
        match app.core.record(deliveries.clone(), progress.clone()).await {
            Ok(()) => return Ok(()),
            Err(crate::core::NoAnswer::Overloaded) => tokio::time::sleep(RECORD_INTERVAL).await,
            Err(_) => return Err(Stop::Lost),
        }
    }
}
