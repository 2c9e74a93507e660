//! Watches the log of events, and has a worker at each endpoint that is behind.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::rows::{EndpointRow, EventRow};
use plimsoll_policy::delivery::Delivery;
use plimsoll_store::{EventQuery, Progress};
use plimsoll_types::{EndpointId, EventId, TenantId};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use super::Place;
use super::worker::{Stop, Worker, endpoints, read, record};
use crate::app::App;
use crate::core::Standing;

/// Events read at once.
const PAGE: usize = 1_000;
/// Pause between two looks at the log, so that under load one look finds what many batches wrote.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// How often workers that the store failed are started again.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Every so many sweeps the cursors of endpoints that nothing concerned are written: events that
/// all have passed can then be pruned, and a restart has a minute of them to look through.
const SWEEPS_PER_WRITE: u32 = 12;
/// Cursors written in one transaction: some 5 ms.
const CURSORS_MAX: usize = 500;
/// Pause before a term whose store gave no answer is looked at again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// One endpoint that is switched on.
struct Slot {
    row: watch::Sender<Arc<EndpointRow>>,
    /// The newest event that it is to hear of.
    high: EventId,
    worker: Option<AbortHandle>,
}

/// The endpoints of one term.
struct Feed {
    app: Arc<App>,
    slots: BTreeMap<EndpointId, Slot>,
    by_owner: HashMap<Option<TenantId>, Vec<EndpointId>>,
    /// The last event that was looked at.
    tail: EventId,
    workers: JoinSet<(EndpointId, Result<(), Stop>)>,
}

/// Delivers for as long as the cell runs: whenever it leads, from where the store says that each
/// endpoint stands.
pub(crate) async fn run(app: Arc<App>) {
    let mut standing = app.standing.clone();
    loop {
        let epoch = match &*standing.borrow_and_update() {
            Standing::Stopped => return,
            Standing::Leading(epoch) => Some(*epoch),
            Standing::Loading | Standing::Waiting(_) => None,
        };
        if let Some(epoch) = epoch {
            // With its feed a term's workers end.
            let mut feed = Feed::new(Arc::clone(&app));
            tokio::select! {
                () = other_than(app.standing.clone(), epoch) => {}
                Err(_) = feed.term() => sleep(RETRY_INTERVAL).await,
            }
        } else if standing.changed().await.is_err() {
            return;
        }
    }
}

/// Waits for the end of a term.
async fn other_than(mut standing: watch::Receiver<Standing>, epoch: u64) {
    let ended = |now: &Standing| !matches!(now, Standing::Leading(now) if *now == epoch);
    // A sender that is gone is an end too.
    let _ = standing.wait_for(ended).await;
}

impl Feed {
    fn new(app: Arc<App>) -> Self {
        app.hooks.places(HashMap::clear);
        Self {
            app,
            slots: BTreeMap::new(),
            by_owner: HashMap::new(),
            tail: EventId(0),
            workers: JoinSet::new(),
        }
    }

    /// Follows endpoints and events until the store or the engine gives no answer.
    async fn term(&mut self) -> Result<std::convert::Infallible, Stop> {
        let mut events = self.app.shell.events.subscribe();
        let mut changed = self.app.shell.endpoints.subscribe();
        self.refresh().await?;
        let start = Instant::now() + SWEEP_INTERVAL;
        let mut sweep = interval_at(start, SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sweeps = 0;
        loop {
            // Both senders live as long as the shell.
            tokio::select! {
                _ = changed.changed() => self.refresh().await?,
                _ = events.changed() => {
                    self.look().await?;
                    sleep(LOOK_INTERVAL).await;
                }
                Some(ended) = self.workers.join_next(), if !self.workers.is_empty() => {
                    self.ended(ended);
                }
                _ = sweep.tick() => {
                    sweeps += 1;
                    self.start_workers();
                    if sweeps % SWEEPS_PER_WRITE == 0 {
                        self.write_cursors().await?;
                    }
                }
            }
        }
    }

    /// Takes over how endpoints are set now.
    async fn refresh(&mut self) -> Result<(), Stop> {
        if self.slots.is_empty() {
            // While nobody listens nobody looks.
            let last = read(&self.app, |reader| reader.last_event()).await?;
            self.tail = self.tail.max(last.unwrap_or(EventId(0)));
        }
        let rows = endpoints(&self.app).await?.into_iter().filter(|row| row.disabled.is_none());
        let rows: BTreeMap<EndpointId, EndpointRow> = rows.map(|row| (row.id, row)).collect();
        let new = rows.keys().any(|id| !self.slots.contains_key(id));
        let progress: HashMap<EndpointId, Progress> = if new {
            let all = read(&self.app, |reader| reader.progress()).await?;
            all.into_iter().map(|step| (step.endpoint, step)).collect()
        } else {
            HashMap::new()
        };
        self.slots.retain(|id, slot| {
            let stays = rows.contains_key(id);
            if let Some(worker) = slot.worker.take_if(|_| !stays) {
                worker.abort();
            }
            stays
        });
        self.app.hooks.places(|places| places.retain(|id, _| rows.contains_key(id)));
        self.by_owner.clear();
        for (id, row) in rows {
            self.by_owner.entry(row.tenant.clone()).or_default().push(id);
            let row = Arc::new(row);
            if let Some(slot) = self.slots.get(&id) {
                self.app.hooks.places(|places| {
                    if let Some((held, _)) = places.get_mut(&id) {
                        *held = Arc::clone(&row);
                    }
                });
                let differs = **slot.row.borrow() != *row;
                if differs {
                    slot.row.send_replace(row);
                }
                continue;
            }
            let step = progress.get(&id);
            let cursor = step.map_or(row.cursor, |step| step.cursor.max(row.cursor));
            let failing_since = step.and_then(|step| step.failing_since);
            let place = Place { delivery: Delivery::new(cursor, failing_since), durable: cursor };
            self.app.hooks.places(|places| places.insert(id, (Arc::clone(&row), place)));
            // Between its cursor and the last event looked at there may be something.
            let slot = Slot { row: watch::Sender::new(row), high: self.tail, worker: None };
            self.slots.insert(id, slot);
        }
        self.start_workers();
        Ok(())
    }

    /// Looks at what is new in the log.
    async fn look(&mut self) -> Result<(), Stop> {
        while !self.slots.is_empty() {
            let query = EventQuery { after: Some(self.tail), tenant: None, limit: PAGE };
            let page = read(&self.app, move |reader| reader.events(&query)).await?;
            for event in &page.items {
                self.concerns(event);
            }
            self.tail = page.through.unwrap_or(self.tail);
            if !page.more {
                break;
            }
        }
        Ok(())
    }

    /// Has an event delivered to whom it concerns.
    fn concerns(&mut self, event: &EventRow) {
        let owners = [None, event.tenant.clone()];
        let owners = &owners[..1 + usize::from(event.tenant.is_some())];
        let ids: Vec<EndpointId> =
            owners.iter().filter_map(|owner| self.by_owner.get(owner)).flatten().copied().collect();
        for id in ids {
            let Some(slot) = self.slots.get_mut(&id) else { continue };
            if slot.row.borrow().wants(event) {
                slot.high = slot.high.max(event.id);
                self.start_worker(id);
            }
        }
    }

    fn start_workers(&mut self) {
        let idle = self.slots.iter().filter(|(_, slot)| slot.worker.is_none());
        let idle: Vec<EndpointId> = idle.map(|(id, _)| *id).collect();
        for id in idle {
            self.start_worker(id);
        }
    }

    /// Starts an endpoint's worker where it has none and is behind.
    fn start_worker(&mut self, id: EndpointId) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let behind =
            self.app.hooks.place(id).is_some_and(|place| place.delivery.cursor() < slot.high);
        if slot.worker.is_none() && behind {
            let worker = Worker::new(Arc::clone(&self.app), slot.row.subscribe());
            slot.worker = Some(self.workers.spawn(async move { (id, worker.run().await) }));
        }
    }

    /// A worker has ended. One that got no answer is started again by the next sweep.
    fn ended(&mut self, ended: Result<(EndpointId, Result<(), Stop>), tokio::task::JoinError>) {
        match ended {
            Ok((id, outcome)) => {
                if let Some(slot) = self.slots.get_mut(&id) {
                    // A slot that was made anew has a worker of its own.
                    slot.worker.take_if(|worker| worker.is_finished());
                }
                if outcome.is_ok() {
                    self.start_worker(id);
                }
            }
            Err(error) => {
                if error.is_panic() {
                    tracing::error!(%error, "a webhook worker panicked");
                }
                for slot in self.slots.values_mut() {
                    slot.worker.take_if(|worker| worker.is_finished());
                }
            }
        }
    }

    /// Moves the cursors of those whom nothing concerned up to where the log was looked at.
    async fn write_cursors(&mut self) -> Result<(), Stop> {
        let mut steps = Vec::new();
        for (id, slot) in &self.slots {
            let tail = self.tail;
            let Some(place) = self.app.hooks.place(*id).filter(|_| slot.worker.is_none()) else {
                continue;
            };
            let mut delivery = place.delivery;
            if delivery.cursor() >= slot.high && place.durable < delivery.cursor().max(tail) {
                delivery.pass(tail);
                self.app.hooks.change_place(*id, |place| place.delivery.pass(tail));
                let (cursor, failing_since) = (delivery.cursor(), delivery.failing_since());
                steps.push(Progress { endpoint: *id, cursor, failing_since });
            }
        }
        for some in steps.chunks(CURSORS_MAX) {
            record(&self.app, Vec::new(), some.to_vec()).await?;
            for step in some {
                self.app.hooks.change_place(step.endpoint, |place| {
                    place.durable = place.durable.max(step.cursor);
                });
            }
        }
        Ok(())
    }
}
