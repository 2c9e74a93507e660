//! The cell's shell towards its callers: requests in, replies out, and connections that wait.

use std::sync::Arc;

use plimsoll_engine::{Caller, Command, Disposition, Input, Reply, Token, rows::Role};
use plimsoll_types::{Millis, OnFull, RefusalCode, RetryHint, SandboxId, SandboxStatus};

use super::cell::Conn;
use super::client::{Answer, Asker, Request, What};
use super::event::{AtNode, Event};
use super::world::World;

impl World {
    /// Answers whoever waits for this sandbox to run, if it does or never will.
    pub(super) fn answer_held(&mut self, id: SandboxId, answer: &Answer) {
        if let Answer::Sandbox { status, .. } = answer
            && is_on_its_way(*status)
        {
            return;
        }
        let held: Vec<u64> = self
            .cell
            .conns
            .iter()
            .filter(|(_, conn)| conn.sandbox == Some(id))
            .map(|(number, _)| *number)
            .collect();
        for conn in held {
            self.answer(conn, answer.clone());
        }
    }

    /// Sends an answer and closes the connection.
    pub(super) fn answer(&mut self, conn: u64, answer: Answer) {
        let Some(state) = self.cell.conns.remove(&conn) else { return };
        self.oracle.acknowledge(&answer);
        if let Answer::Sandbox { id, .. } = &answer {
            // Somebody knows of it: whoever else waits for it may leave.
            for other in self.cell.conns.values_mut().filter(|other| other.sandbox == Some(*id)) {
                other.made = false;
            }
        }
        let client = state.client;
        let answer = Box::new(answer);
        self.send(None, Millis::ZERO, |_| Event::Answered { client, conn, answer: answer.clone() });
    }

    pub(super) fn request(&mut self, conn: u64, client: usize, request: &Request) {
        if self.cell.engine.is_none() {
            let answer = Box::new(Answer::Broken);
            let event = Event::Answered { client, conn, answer };
            self.send(None, Millis::ZERO, |_| event.clone());
            return;
        }
        if self.cell.conns.contains_key(&conn) {
            // The network has doubled it: one connection, one call.
            return;
        }
        let token = Token(self.number());
        let mut command = request.command(|| self.ids.next());
        let mut rejects = false;
        if request.wait > Millis::ZERO
            && let Command::Create(create) = &mut command
        {
            rejects = create.on_full == OnFull::Reject;
            create.on_full = OnFull::Queue;
        }
        let running = request.waits_for_running();
        let wait = request.wait;
        let key = match &request.what {
            What::Create(create) => create.key.as_ref(),
            What::Fork(fork) => fork.key.as_ref(),
            _ => None,
        };
        let key = key.map(|(key, _)| (request.tenant.clone(), Arc::clone(key)));
        let state = Conn { client, token: Some(token), sandbox: None, made: false, rejects, key };
        self.cell.conns.insert(conn, state);
        self.cell.asked.insert(token, Asker::Client { conn, running, wait });
        let caller = Caller { role: Role::Tenant, tenant: request.tenant.clone() };
        if wait > Millis::ZERO && matches!(request.what, What::Create(_)) {
            let process = self.cell.process;
            self.queue.put(self.now + wait, Event::WaitOver { process, conn });
        }
        self.cell_input(Input::Call { token, caller, command });
    }

    pub(super) fn reply(&mut self, token: Token, reply: Reply) {
        let Some(asker) = self.cell.asked.remove(&token) else { return };
        match asker {
            Asker::World => {}
            Asker::Hook { endpoint } => self.hook_told(endpoint),
            Asker::Beat { node, agent, sequence } => {
                let Reply::Heartbeat(answer) = reply else { return };
                let answer = Box::new(answer);
                let what = AtNode::Answered { agent, sequence, answer };
                self.tell(node, Millis::ZERO, what);
            }
            Asker::Register { node, agent } => {
                let Reply::Registered { incarnation, .. } = reply else { return };
                let what = AtNode::Registered { agent, incarnation };
                self.tell(node, Millis::ZERO, what);
            }
            Asker::Client { conn, running, wait } => {
                self.reply_to_client(conn, running, wait, reply);
            }
        }
    }

    fn reply_to_client(&mut self, conn: u64, running: bool, wait: Millis, reply: Reply) {
        let answer = match reply {
            Reply::Sandbox { view, disposition, .. } => {
                let (id, status) = (view.row.id, view.row.status);
                let made = disposition == Disposition::Created
                    || (disposition == Disposition::Queued && running);
                let Some(state) = self.cell.conns.get_mut(&conn) else {
                    // Its caller has left before it was answered: nobody owns it.
                    let key = view.row.key.as_deref();
                    let joined = self.cell.conns.values().any(|conn| {
                        conn.key.as_ref().is_some_and(|(tenant, of)| {
                            *tenant == view.row.tenant && Some(&**of) == key
                        })
                    });
                    if running && made && !joined && is_on_its_way(status) {
                        self.leave(id, true);
                    }
                    return;
                };
                state.token = None;
                let hold = running
                    && match status {
                        SandboxStatus::Queued => wait > Millis::ZERO,
                        _ => is_on_its_way(status),
                    };
                if hold {
                    state.sandbox = Some(id);
                    state.made |= made;
                    return;
                }
                Answer::Sandbox { id, status }
            }
            Reply::Reservation { row, disposition, .. } => {
                let made = matches!(disposition, Disposition::Created | Disposition::Replayed);
                Answer::Reservations(if made { vec![row.id] } else { Vec::new() })
            }
            Reply::Reservations { rows, .. } => {
                Answer::Reservations(rows.iter().map(|row| row.id).collect())
            }
            Reply::Refused(refusal) => Answer::Refused { code: refusal.code, retry: refusal.retry },
            _ => Answer::Done,
        };
        self.answer(conn, answer);
    }

    /// Ends what a caller that waited has asked for.
    fn leave(&mut self, id: SandboxId, gone: bool) {
        let token = Token(self.number());
        self.cell.asked.insert(token, Asker::World);
        self.call_as_operator(token, Command::Withdraw { id, gone });
    }

    /// The longest wait that a caller asked for is over.
    pub(super) fn wait_over(&mut self, process: u64, conn: u64) {
        if process != self.cell.process {
            return;
        }
        let Some(state) = self.cell.conns.get(&conn).cloned() else { return };
        let Some(id) = state.sandbox else { return };
        if state.rejects {
            let waiting = self.cell.conns.values().filter(|conn| conn.sandbox == Some(id));
            if waiting.count() > 1 {
                let retry = RetryHint::After(Millis::from_seconds(1));
                return self.answer(conn, Answer::Refused { code: RefusalCode::NoCapacity, retry });
            }
            let token = Token(self.number());
            let asker = Asker::Client { conn, running: true, wait: Millis::ZERO };
            self.cell.asked.insert(token, asker);
            self.call_as_operator(token, Command::Withdraw { id, gone: false });
        } else if let Some(row) = self.table.sandboxes.get(&id) {
            let status = row.status;
            self.answer(conn, Answer::Sandbox { id, status });
        }
    }

    /// The caller has closed its connection.
    pub(super) fn hung_up(&mut self, conn: u64) {
        let Some(state) = self.cell.conns.remove(&conn) else { return };
        if let Some(id) = state.sandbox {
            // Unless somebody else waits for it too.
            let joined = self.cell.conns.values().any(|other| {
                other.sandbox == Some(id) || (other.key.is_some() && other.key == state.key)
            });
            if state.made && !joined {
                self.leave(id, true);
            }
        } else if let Some(whose) = state.token {
            self.operate(Command::Abandon { token: whose });
        }
    }
}

/// Whether a sandbox in this state may still come to run by itself.
fn is_on_its_way(status: SandboxStatus) -> bool {
    matches!(status, SandboxStatus::Queued | SandboxStatus::Provisioning | SandboxStatus::Resuming)
}
