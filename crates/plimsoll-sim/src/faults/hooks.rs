//! Webhooks: who sends, in the cell, and who receives, outside.
//!
//! What follows from an attempt is the policy's to say, as in production. Around it stands a small
//! shell: an attempt is made, what the quota ladder must know is told to it, the cursor is made
//! durable; and the cell may die between any two of these.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use plimsoll_engine::rows::{EndpointRow, EventRow};
use plimsoll_engine::{Admin, Command, Input, Read, Token};
use plimsoll_policy::delivery::{Delivery, DeliveryRule, NOTICES, Next, Off, Outcome};
use plimsoll_types::{EndpointId, EventId, Millis, TenantId, Timestamp};

use super::client::Asker;
use super::event::Event;
use super::table::Progress;
use super::world::World;

/// Deliveries in a row that are written together.
const RECORD_MAX: usize = 32;
/// Longest time for one attempt.
const ATTEMPT_TIMEOUT: u64 = 15_000;
/// How often it is looked at whether somebody is held up.
const LOOK: Millis = Millis::from_seconds(20);
/// Waits of runs in which deliveries are given up on.
const SHORT_WAITS: [Millis; 4] = [Millis(1_000), Millis(3_000), Millis(10_000), Millis(20_000)];

/// How a receiver behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Manner {
    #[default]
    Well,
    /// It takes its time, now and then more than it is given.
    Slow,
    /// Nobody listens.
    Down,
    /// It answers that it is busy, and for how long.
    Busy,
    /// It takes events, and its answers are lost.
    Mute,
    /// It wants no more.
    Gone,
}

impl Manner {
    pub(super) const BAD: [Self; 5] = [Self::Slow, Self::Down, Self::Busy, Self::Mute, Self::Gone];
}

/// A receiver outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receiver {
    pub(super) manner: Manner,
    pub(super) since: Timestamp,
}

/// Something about a delivery. `term` counts terms of leaders: what was meant for an earlier one
/// reaches nobody.
#[derive(Clone, Debug)]
pub(super) enum HookEvent {
    /// An event arrives at a receiver.
    Arrives { endpoint: EndpointId, event: Arc<EventRow> },
    /// An attempt comes out.
    Attempted { term: u64, endpoint: EndpointId, at: Timestamp, outcome: Outcome },
    /// The next attempt is due.
    Due { term: u64, endpoint: EndpointId },
    /// The store answers about a cursor.
    Recorded { term: u64, endpoint: EndpointId },
    /// Is somebody held up?
    Look,
}

/// What a worker waits for.
#[derive(Clone, Debug)]
enum Busy {
    /// The outcome of an attempt.
    Sending(Arc<EventRow>),
    /// The ladder.
    Telling(Next),
    /// The store, and whether the endpoint is switched off after that.
    Writing(Progress, Option<Off>),
    /// The time of the next attempt; a new address is tried at once.
    Waiting(String),
    /// Its endpoint to be switched off.
    Leaving,
}

/// Who delivers to one endpoint.
#[derive(Clone, Debug)]
struct Worker {
    delivery: Delivery,
    busy: Option<Busy>,
    /// Attempts since the cursor was last written.
    unwritten: usize,
    failed: Option<(EventId, u32, Timestamp)>,
}

/// Everything about webhooks.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    pub(super) rule: DeliveryRule,
    pub(super) receivers: BTreeMap<EndpointId, Receiver>,
    workers: BTreeMap<EndpointId, Worker>,
}

impl Hooks {
    /// The rule of a run in which deliveries are given up on and endpoints switched off.
    pub(super) fn short() -> DeliveryRule {
        DeliveryRule {
            waits: &SHORT_WAITS,
            failing_max: Millis::from_seconds(120),
            retry_after_max: Millis::from_seconds(30),
            ..DeliveryRule::default()
        }
    }
}

impl World {
    /// Makes an endpoint that hears of everything from now on.
    pub(super) fn put_endpoint(&mut self, tenant: Option<TenantId>, events: Vec<String>) {
        let id = EndpointId(self.ids.next());
        let receiver = Receiver { manner: Manner::Well, since: self.now };
        self.hooks.receivers.insert(id, receiver);
        let row = EndpointRow {
            id,
            tenant,
            url: format!("https://{}.example/1", id.0),
            events,
            description: String::new(),
            secrets: Vec::new(),
            disabled: None,
            created_at: self.now,
            cursor: self.table.last_event.unwrap_or(EventId(0)),
            failing_since: None,
        };
        self.operate(Command::Admin(Box::new(Admin::PutEndpoint(row))));
    }

    /// The first look at whether somebody is held up.
    pub(super) fn look_at_hooks(&mut self) {
        self.queue.put(self.now + LOOK, Event::Hook(HookEvent::Look));
    }

    /// Some receiver behaves otherwise.
    pub(super) fn set_manner(&mut self, at: usize, manner: Manner) {
        let now = self.now;
        if let Some(receiver) = self.hooks.receivers.values_mut().nth(at) {
            *receiver = Receiver { manner, since: now };
        }
    }

    /// An owner switches an endpoint off or on, moves it or removes it.
    pub(super) fn change_endpoint(&mut self, at: usize) {
        let Some(mut row) = self.table.endpoints.values().nth(at).cloned() else { return };
        let admin = match (row.disabled.is_some(), self.rng.hooks.below(8)) {
            (_, 0) => Admin::DropEndpoint(row.id),
            (true, _) => {
                self.switch_on(&mut row);
                Admin::PutEndpoint(row)
            }
            (false, 1 | 2) => {
                row.disabled = Some("switched off by its owner".to_owned());
                Admin::PutEndpoint(row)
            }
            (false, _) => {
                row.url.push('1');
                Admin::PutEndpoint(row)
            }
        };
        self.operate(Command::Admin(Box::new(admin)));
    }

    fn switch_on(&mut self, row: &mut EndpointRow) {
        let progress = self.table.progress_of(row);
        self.table.keep_progress(row.id, Progress { failing_since: None, ..progress });
        row.cursor = progress.cursor;
        row.disabled = None;
    }

    /// Every receiver takes what it is sent, and every endpoint is on and tried at once.
    pub(super) fn mend_hooks(&mut self) {
        let now = self.now;
        for receiver in self.hooks.receivers.values_mut() {
            *receiver = Receiver { manner: Manner::Well, since: now };
        }
        for mut row in self.table.endpoints.values().cloned().collect::<Vec<_>>() {
            if row.disabled.is_some() {
                self.switch_on(&mut row);
            }
            row.url.push('2');
            self.operate(Command::Admin(Box::new(Admin::PutEndpoint(row))));
        }
    }

    /// A term has ended: what its workers had asked the store for may be durable or not.
    pub(super) fn drop_hooks(&mut self) {
        for (id, worker) in std::mem::take(&mut self.hooks.workers) {
            if let Some(Busy::Writing(step, _)) = worker.busy
                && self.rng.hooks.chance(500)
            {
                self.keep(id, step);
            }
        }
    }

    fn keep(&mut self, id: EndpointId, step: Progress) {
        let Some(row) = self.table.endpoints.get(&id) else { return };
        self.oracle.deliveries_kept(self.now, &self.table, row, step.cursor, &self.hooks.rule);
        self.table.keep_progress(id, step);
    }

    /// Lets every endpoint that is on have a worker, and each go on.
    pub(super) fn run_hooks(&mut self) {
        if self.cell.engine.is_none() {
            return;
        }
        let on: BTreeMap<EndpointId, String> = self
            .table
            .endpoints
            .values()
            .filter(|row| row.disabled.is_none())
            .map(|row| (row.id, row.url.clone()))
            .collect();
        self.hooks.workers.retain(|id, _| on.contains_key(id));
        for (id, url) in on {
            if !self.hooks.workers.contains_key(&id) {
                let progress = self.table.progress_of(&self.table.endpoints[&id]);
                let delivery = Delivery::new(progress.cursor, progress.failing_since);
                let worker = Worker { delivery, busy: None, unwritten: 0, failed: progress.failed };
                self.hooks.workers.insert(id, worker);
            }
            let worker = self.hooks.workers.get_mut(&id);
            if let Some(worker) = worker
                && matches!(&worker.busy, Some(Busy::Waiting(tried)) if *tried != url)
            {
                worker.busy = None;
                self.attempt(id);
            } else {
                self.go_on(id);
            }
        }
    }

    /// On to what an endpoint is to hear next, if its worker has nothing else to do.
    fn go_on(&mut self, id: EndpointId) {
        let now = self.hook_time();
        let Some(worker) = self.hooks.workers.get_mut(&id) else { return };
        let Some(row) = self.table.endpoints.get(&id) else { return };
        if worker.busy.is_some() {
            return;
        }
        let after = (Bound::Excluded(worker.delivery.cursor()), Bound::Unbounded);
        let next = self.table.events.range(after).map(|(_, event)| event).find(|e| row.wants(e));
        let Some(event) = next.map(|event| event.id) else {
            if let Some(last) = self.table.last_event {
                worker.delivery.pass(last);
            }
            if worker.unwritten > 0 {
                self.write_cursor(id, None);
            }
            return;
        };
        if worker.unwritten >= RECORD_MAX {
            return self.write_cursor(id, None);
        }
        if worker.delivery.head().is_none_or(|head| head.event != event) {
            let last = worker.failed.filter(|(of, ..)| *of == event);
            let last = last.map(|(_, attempts, due)| (attempts, Some(due)));
            worker.delivery.begin(event, last, now, &self.hooks.rule);
        }
        let due = worker.delivery.head().and_then(|head| head.due).filter(|due| *due > now);
        if let Some(due) = due {
            worker.busy = Some(Busy::Waiting(row.url.clone()));
            let at = Timestamp(due.0 - self.cell.ahead).max(self.now);
            let term = self.cell.epoch;
            self.queue.put(at, Event::Hook(HookEvent::Due { term, endpoint: id }));
        } else {
            self.attempt(id);
        }
    }

    fn hook_time(&self) -> Timestamp {
        Timestamp(self.now.0 + self.cell.ahead)
    }

    /// Sends the event at the head.
    fn attempt(&mut self, endpoint: EndpointId) {
        let at = self.hook_time();
        let Some(worker) = self.hooks.workers.get_mut(&endpoint) else { return };
        let Some(head) = worker.delivery.head() else { return };
        let Some(event) = self.table.events.get(&head.event).cloned() else { return };
        worker.busy = Some(Busy::Sending(Arc::clone(&event)));
        let manner =
            self.hooks.receivers.get(&endpoint).map_or(Manner::Down, |receiver| receiver.manner);
        let rng = &mut self.rng.hooks;
        let failed = Outcome::Failed { retry_after: None };
        let quick = rng.between(1, 40);
        // When it arrives, when its answer does, and which.
        let (arrives, answered, outcome) = match manner {
            Manner::Well => (Some(quick), quick + rng.between(1, 40), Outcome::Taken),
            Manner::Slow => {
                let arrives = rng.between(1, 3_000);
                let answered = arrives + rng.between(1, ATTEMPT_TIMEOUT);
                let late = answered > ATTEMPT_TIMEOUT;
                let outcome = if late { failed } else { Outcome::Taken };
                (Some(arrives), answered.min(ATTEMPT_TIMEOUT), outcome)
            }
            Manner::Down if rng.chance(300) => (None, ATTEMPT_TIMEOUT, failed),
            Manner::Down => (None, quick, failed),
            Manner::Busy => {
                let retry_after = Some(Millis(rng.between(0, 60_000)));
                (None, quick, Outcome::Failed { retry_after })
            }
            Manner::Mute if rng.chance(200) => (Some(quick), quick + 5, Outcome::Taken),
            Manner::Mute => (Some(quick), quick + rng.between(1, ATTEMPT_TIMEOUT - 40), failed),
            Manner::Gone => (None, quick, Outcome::Gone),
        };
        let term = self.cell.epoch;
        if let Some(after) = arrives {
            let arrives = HookEvent::Arrives { endpoint, event };
            self.queue.put(self.now + Millis(after), Event::Hook(arrives));
        }
        let attempted = HookEvent::Attempted { term, endpoint, at, outcome };
        self.queue.put(self.now + Millis(answered), Event::Hook(attempted));
    }

    pub(super) fn hook(&mut self, what: HookEvent) {
        match what {
            HookEvent::Arrives { endpoint, event } => {
                self.stats.deliveries += 1;
                self.oracle.arrived(self.now, &self.table, endpoint, &event);
            }
            HookEvent::Attempted { term, endpoint, at, outcome } if term == self.cell.epoch => {
                self.attempted(endpoint, at, outcome);
            }
            HookEvent::Due { term, endpoint } if term == self.cell.epoch => {
                let worker = self.hooks.workers.get_mut(&endpoint);
                // One that was tried at once is not tried again for that.
                if let Some(worker) = worker
                    && matches!(worker.busy, Some(Busy::Waiting(_)))
                {
                    worker.busy = None;
                    self.go_on(endpoint);
                }
            }
            HookEvent::Recorded { term, endpoint } if term == self.cell.epoch => {
                self.recorded(endpoint);
            }
            HookEvent::Look => {
                // One whose endpoint was switched on again meanwhile starts anew.
                let leaves = |worker: &Worker| matches!(worker.busy, Some(Busy::Leaving));
                self.hooks.workers.retain(|_, worker| !leaves(worker));
                self.run_hooks();
                self.held_up();
                self.look_at_hooks();
            }
            _ => {}
        }
    }

    fn attempted(&mut self, id: EndpointId, at: Timestamp, outcome: Outcome) {
        let draw = u32::try_from(self.rng.hooks.below(1 << 32)).unwrap_or(0);
        let Some(worker) = self.hooks.workers.get_mut(&id) else { return };
        let Some(Busy::Sending(event)) = worker.busy.take() else { return };
        self.oracle.deliveries.attempted(id, event.id, at, outcome);
        let next = worker.delivery.attempted(at, outcome, draw, &self.hooks.rule);
        worker.unwritten += 1;
        worker.failed = match (next, worker.delivery.head()) {
            (Next::RetryAt(due), Some(head)) => Some((head.event, head.attempts, due)),
            _ => None,
        };
        worker.busy = Some(Busy::Telling(next));
        if next == Next::GiveUp {
            self.stats.given_up += 1;
        }
        let Some(row) = self.table.endpoints.get(&id) else { return };
        let own = row.tenant.is_some() && row.tenant == event.tenant;
        let tells = next.tells().filter(|_| own && NOTICES.contains(&event.kind.as_str()));
        let Some(delivered) = tells else { return self.hook_told(id) };
        self.cell_input(Input::Delivered { event: event.id, endpoint: id, delivered });
        // A question behind it is answered once everything before it is durable.
        let token = Token(self.number());
        self.cell.asked.insert(token, Asker::Hook { endpoint: id });
        self.call_as_operator(token, Command::Read(Read::Counts));
    }

    /// What the ladder had to know is durable.
    pub(super) fn hook_told(&mut self, id: EndpointId) {
        let Some(worker) = self.hooks.workers.get_mut(&id) else { return };
        let Some(Busy::Telling(next)) = worker.busy else { return };
        worker.busy = None;
        let off = if let Next::Disable(off) = next { Some(off) } else { None };
        if next.is_written_at_once() {
            self.write_cursor(id, off);
        } else {
            self.go_on(id);
        }
    }

    fn write_cursor(&mut self, endpoint: EndpointId, off: Option<Off>) {
        let Some(worker) = self.hooks.workers.get_mut(&endpoint) else { return };
        let (cursor, failing_since) = (worker.delivery.cursor(), worker.delivery.failing_since());
        let step = Progress { cursor, failing_since, failed: worker.failed };
        worker.unwritten = 0;
        worker.busy = Some(Busy::Writing(step, off));
        let time = self.rng.hooks.between(1, 12) * self.cell.store.slow.max(1);
        let term = self.cell.epoch;
        self.queue
            .put(self.now + Millis(time), Event::Hook(HookEvent::Recorded { term, endpoint }));
    }

    fn recorded(&mut self, id: EndpointId) {
        let Some(worker) = self.hooks.workers.get_mut(&id) else { return };
        let Some(Busy::Writing(step, off)) = worker.busy.take() else { return };
        if self.rng.hooks.chance(self.cell.store.fails) {
            // Its workers end with the term; this one cannot know whether it took.
            if self.rng.hooks.chance(300) {
                self.keep(id, step);
            }
            self.stats.store_failures += 1;
            return self.rebuild();
        }
        self.keep(id, step);
        if self.rng.hooks.chance(self.cell.store.crashes) {
            let down = Millis(self.rng.hooks.between(50, 15_000));
            return self.crash(down);
        }
        match off {
            Some(off) => self.switch_off(id, off),
            None => self.go_on(id),
        }
    }

    fn switch_off(&mut self, id: EndpointId, off: Off) {
        if let Some(worker) = self.hooks.workers.get_mut(&id) {
            worker.busy = Some(Busy::Leaving);
        }
        self.oracle.switched_off(id, off, self.hook_time(), &self.hooks.rule);
        let Some(mut row) = self.table.endpoints.get(&id).cloned() else { return };
        row.disabled = Some(format!("{off:?}"));
        self.operate(Command::Admin(Box::new(Admin::PutEndpoint(row))));
    }

    /// Nobody whose receiver is well waits for an event while the cell is.
    fn held_up(&mut self) {
        let calm = Millis::from_seconds(60);
        let well = self.cell.engine.is_some()
            && self.now.since(self.cell.led_at) > calm
            && self.now.since(self.cell.slow_at) > calm
            && self.cell.store.slow == 0;
        if !well {
            return;
        }
        let now = self.hook_time();
        self.oracle.ladders_climb(now);
        for (id, receiver) in &self.hooks.receivers {
            let Some(row) = self.table.endpoints.get(id) else { continue };
            let waits = self.table.progress_of(row).failing_since.is_some()
                && self.hooks.rule == DeliveryRule::default();
            if receiver.manner == Manner::Well && self.now.since(receiver.since) > calm && !waits {
                self.oracle.held_up(&self.table, row, now);
            }
        }
    }
}
