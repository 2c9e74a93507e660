//! What clients do.

use std::sync::Arc;

use plimsoll_engine::{
    CreateSandbox, ForkSandbox, Reserve, ReserveBatch, ReserveItem, ReserveMode,
};
use plimsoll_types::{
    DecisionId, Lifecycle, Mib, Millis, OnFull, ReservationId, RetryHint, SandboxId, SandboxStatus,
    TemplateName,
};

use super::client::{Answer, Op, PATIENCE, Request, What};
use super::event::{AtNode, Event};
use super::setup::TEMPLATES;
use super::world::World;

impl World {
    /// Somebody does something, and will again.
    pub(super) fn act(&mut self, client: usize) {
        if self.quiet {
            return;
        }
        let pace = self.clients[client].pace;
        let wait = Millis(self.rng.clients.between(1, pace));
        self.queue.put(self.now + wait, Event::Act { client });
        if self.clients[client].ops.len() > 20 {
            return;
        }
        let Some(request) = self.wish(client) else { return };
        let op = self.clients[client].begin(self.now, request);
        self.try_op(client, op);
    }

    fn wish(&mut self, client: usize) -> Option<Request> {
        let rng = &mut self.rng.clients;
        let state = &mut self.clients[client];
        let own = rng.pick(&state.sandboxes).copied();
        let held = rng.pick(&state.reservations).copied();
        let mut wait = Millis::ZERO;
        let what = match rng.below(100) {
            0..30 => {
                let create = self.new_create(client);
                if self.rng.clients.chance(300) {
                    wait = Millis::from_seconds(self.rng.clients.between(1, 30));
                }
                What::Create(Box::new(create))
            }
            30..36 => {
                let from = own?;
                state.keys += 1;
                let key = Some((Arc::from(format!("f{client}-{}", state.keys)), 7));
                What::Fork(Box::new(ForkSandbox {
                    from,
                    id: SandboxId(0),
                    decision: DecisionId(0),
                    key,
                    labels: None,
                    priority: None,
                    on_full: if rng.chance(500) { OnFull::Queue } else { OnFull::Reject },
                    answered: rng.chance(500),
                }))
            }
            36..44 => What::Pause(own?),
            44..54 => What::Resume(own?),
            54..66 => What::Touch(own?),
            66..76 => What::Delete(own?),
            76..79 => What::Stop(own?),
            79..82 => What::Start(own?),
            82..84 => What::Priority(own?, i32::try_from(rng.below(5)).unwrap_or(0) - 2),
            84..90 => {
                let item = self.new_item(client);
                let rng = &mut self.rng.clients;
                let mode = match rng.below(10) {
                    0..5 => ReserveMode::Reject,
                    5..8 => ReserveMode::Wait { seconds: rng.between(1, 60) },
                    _ => ReserveMode::DryRun,
                };
                let decision = DecisionId(0);
                What::Reserve(Box::new(Reserve { decision, item, mode }))
            }
            90..92 => {
                let number = rng.between(2, 5);
                let items = (0..number).map(|_| self.new_item(client)).collect();
                What::Batch(Box::new(ReserveBatch { decision: DecisionId(0), items }))
            }
            92..95 => {
                let group = rng.chance(500).then(|| Arc::from("group"));
                What::Commit(held?, group)
            }
            95 => What::Renew(held?),
            96..99 => What::Release(held?),
            _ => What::Explain(Box::new(self.new_create(client))),
        };
        let tenant = self.clients[client].tenant.clone();
        Some(Request { tenant, what, wait })
    }

    fn new_create(&mut self, client: usize) -> CreateSandbox {
        let rng = &mut self.rng.clients;
        let state = &mut self.clients[client];
        let key = rng.chance(800).then(|| {
            state.keys += 1;
            (Arc::from(format!("c{client}-{}", state.keys)), 1)
        });
        let template = rng.pick(&TEMPLATES).copied().unwrap_or("shell");
        let memory = [None, None, Some(128), Some(700), Some(2_048)];
        let limit = |rng: &mut crate::rng::Rng| {
            rng.chance(250).then(|| i64::try_from(rng.between(60, 240)).unwrap_or(60))
        };
        let template = TemplateName::new(template).expect("a valid name");
        CreateSandbox {
            key,
            memory_mib: rng.pick(&memory).copied().flatten().map(Mib),
            priority: i32::try_from(rng.below(3)).unwrap_or(0),
            preemptible: rng.chance(800),
            on_full: if rng.chance(500) { OnFull::Queue } else { OnFull::Reject },
            lifecycle: Lifecycle {
                idle_timeout_seconds: limit(rng),
                max_run_seconds: limit(rng),
                max_paused_seconds: limit(rng),
                ttl_seconds: limit(rng),
            },
            answered: rng.chance(400),
            ..CreateSandbox::new(SandboxId(0), DecisionId(0), template)
        }
    }

    fn new_item(&mut self, client: usize) -> ReserveItem {
        let rng = &mut self.rng.clients;
        let state = &mut self.clients[client];
        state.keys += 1;
        let sizes = [128, 512, 1_024, 3_000];
        let key = Arc::from(format!("r{client}-{}", state.keys));
        let memory = Mib(rng.pick(&sizes).copied().unwrap_or(512));
        ReserveItem {
            stateful: rng.chance(200),
            priority: i32::try_from(rng.below(3)).unwrap_or(0),
            ttl_seconds: rng.chance(300).then(|| rng.between(5, 90)),
            ..ReserveItem::new(ReservationId(0), key, 3, memory)
        }
    }

    /// Makes one try of an operation.
    fn try_op(&mut self, client: usize, op: u64) {
        let conn = self.number();
        let Some(state) = self.clients[client].ops.get_mut(&op) else { return };
        state.conn = Some(conn);
        let request = state.request.clone();
        // Now and then a caller loses its patience early.
        let mut patience = PATIENCE;
        if self.rng.clients.chance(50) {
            patience = Millis(self.rng.clients.between(20, 3_000));
        }
        patience.0 += request.wait.0;
        if let What::Reserve(reserve) = &request.what
            && let ReserveMode::Wait { seconds } = reserve.mode
        {
            patience.0 += seconds * 1_000;
        }
        let request = Box::new(request);
        self.send(None, Millis::ZERO, |_| Event::Request {
            conn,
            client,
            request: request.clone(),
        });
        let answer = Box::new(Answer::Broken);
        self.queue.put(self.now + patience, Event::Answered { client, conn, answer });
    }

    pub(super) fn retry(&mut self, client: usize, op: u64) {
        if self.clients[client].ops.contains_key(&op) {
            self.try_op(client, op);
        }
    }

    /// An answer has come, or the connection is broken or was given up.
    pub(super) fn answered(&mut self, client: usize, conn: u64, answer: Answer) {
        let Some(number) = self.clients[client].op_of(conn) else { return };
        let state = &mut self.clients[client];
        let Some(op) = state.ops.get_mut(&number) else { return };
        op.conn = None;
        match answer {
            Answer::Sandbox { id, status } => {
                let op = state.ops.remove(&number);
                self.know(client, id, status, op);
            }
            Answer::Reservations(ids) => {
                state.ops.remove(&number);
                state.reservations.extend(ids);
                while state.reservations.len() > 12 {
                    state.reservations.remove(0);
                }
            }
            Answer::Done => drop(state.ops.remove(&number)),
            Answer::Refused { code, retry } => {
                self.stats.refused(code);
                let quiet = self.quiet;
                let wait = op.backoff(self.now, retry, &mut self.rng.clients);
                match wait {
                    Some(wait) if !quiet => {
                        self.queue.put(self.now + wait, Event::Retry { client, op: number });
                    }
                    _ => {
                        let op = state.ops.remove(&number);
                        if code == plimsoll_types::RefusalCode::NotFound
                            && let Some(id) = op.and_then(|op| subject(&op))
                        {
                            state.sandboxes.retain(|known| *known != id);
                        }
                    }
                }
            }
            Answer::Broken => {
                let wait = op.backoff(self.now, RetryHint::Maybe, &mut self.rng.clients);
                match wait {
                    Some(wait) => {
                        self.queue.put(self.now + wait, Event::Retry { client, op: number });
                    }
                    None => drop(state.ops.remove(&number)),
                }
                // The cell learns of it, unless it has closed the connection itself.
                self.send(None, Millis::ZERO, |_| Event::HungUp { conn });
            }
        }
    }

    /// A client learns how one of its sandboxes stands.
    fn know(&mut self, client: usize, id: SandboxId, status: SandboxStatus, op: Option<Op>) {
        let state = &mut self.clients[client];
        let what = op.map(|op| op.request.what);
        if matches!(what, Some(What::Delete(_))) {
            self.oracle.deleted(id);
        }
        if status.is_terminal() || status == SandboxStatus::Terminating {
            state.sandboxes.retain(|known| *known != id);
            return;
        }
        if !state.sandboxes.contains(&id) {
            state.sandboxes.push(id);
        }
        if matches!(what, Some(What::Touch(_)))
            && status == SandboxStatus::Running
            && let Some(host) = self.table.sandboxes.get(&id).and_then(|row| row.host.clone())
            && let Some(node) = self.node_of(&host)
        {
            self.tell(node, Millis::ZERO, AtNode::Active { id });
        }
    }
}

fn subject(op: &Op) -> Option<SandboxId> {
    match op.request.what {
        What::Pause(id)
        | What::Resume(id)
        | What::Stop(id)
        | What::Start(id)
        | What::Touch(id)
        | What::Delete(id)
        | What::Priority(id, _) => Some(id),
        _ => None,
    }
}
