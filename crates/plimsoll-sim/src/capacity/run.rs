//! One run: users, the engine, and a clock.

use std::collections::BTreeMap;

use plimsoll_engine::{
    Caller, Command, CreateSandbox, Effect, Engine, Input, Observation, Output, Reply, Token,
};
use plimsoll_policy::slots::holds_slot;
use plimsoll_types::{
    DecisionId, HostCommand, HostId, HostOp, HostOutcome, Millis, PoolName, SandboxId,
    SandboxStatus, Timestamp,
};

use super::workload::{Session, sessions};
use super::{ModelError, Params, Strategy, setup};

/// What one run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Users that had a session, and so a computer.
    pub users: u64,
    /// Those of them whose computer is on the pool.
    pub on_pool: u64,
    /// For how long computers outside were up, from their start to the end of their pause.
    pub external: Millis,
    /// For how long a session in progress had its computer on a slot.
    pub used: Millis,
    /// Every wait, shortest first: from a session's begin, or from its interruption, until its
    /// computer runs.
    pub waits: Vec<Millis>,
    /// Computers that were paused to make room.
    pub preemptions: u64,
    /// How often a session's computer was paused under it.
    pub interrupted: u64,
}

/// Runs the model once. The same arguments give the same run.
///
/// # Errors
/// When the engine refuses what the model takes for granted: a fault of the model.
pub fn run(users: u64, strategy: Strategy, params: &Params, seed: u64) -> Result<Run, ModelError> {
    let mut world = World::new(users, strategy, params, seed)?;
    while let Some(at) = world.next_at().filter(|at| *at < world.end) {
        world.now = world.now.max(at);
        world.step()?;
    }
    Ok(world.finish())
}

/// One user and the user's computer.
#[derive(Debug)]
struct User {
    sessions: std::vec::IntoIter<Session>,
    /// The end of the session in progress.
    busy_until: Option<Timestamp>,
    /// Where the computer stands, once there is one.
    status: Option<SandboxStatus>,
    external: bool,
    /// Since when sessions wait for it.
    waits: Vec<Timestamp>,
    /// Whether the next call of the session is among the events.
    calls: bool,
    /// Until when what is measured by time has been counted.
    counted: Timestamp,
}

#[derive(Debug)]
enum Event {
    /// A session begins.
    Begin(usize, Session),
    /// The session in progress ends.
    End(usize),
    /// A session calls into its computer.
    Call(usize),
    /// A session whose computer was paused under it wants it back.
    Wake(usize),
    /// A host has done what it was told.
    Done(HostId, Box<HostCommand>),
}

#[derive(Debug)]
struct World<'a> {
    params: &'a Params,
    strategy: Strategy,
    engine: Engine,
    out: Output,
    caller: Caller,
    pool: PoolName,
    now: Timestamp,
    end: Timestamp,
    users: Vec<User>,
    events: BTreeMap<(Timestamp, u64), Event>,
    numbers: u64,
    run: Run,
}

impl<'a> World<'a> {
    fn new(
        users: u64,
        strategy: Strategy,
        params: &'a Params,
        seed: u64,
    ) -> Result<Self, ModelError> {
        let caller = setup::caller();
        let mut world = Self {
            params,
            strategy,
            engine: setup::engine(users, strategy, params, &caller)?,
            out: Output::default(),
            caller,
            pool: setup::pool_name(),
            now: Timestamp(0),
            end: Timestamp(0) + params.length(),
            users: Vec::new(),
            events: BTreeMap::new(),
            numbers: 0,
            run: Run::default(),
        };
        for user in 0..users {
            world.users.push(User {
                sessions: sessions(seed, user, params).into_iter(),
                busy_until: None,
                status: None,
                external: false,
                waits: Vec::new(),
                calls: false,
                counted: Timestamp(0),
            });
        }
        for user in 0..world.users.len() {
            world.await_session(user);
        }
        Ok(world)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Of events at one time, the one that was put in first comes first.
    fn put(&mut self, at: Timestamp, event: Event) {
        let number = self.number();
        self.events.insert((at, number), event);
    }

    fn next_at(&self) -> Option<Timestamp> {
        let event = self.events.first_key_value().map(|((at, _), _)| *at);
        [event, self.engine.next_wakeup()].into_iter().flatten().min()
    }

    fn step(&mut self) -> Result<(), ModelError> {
        let due = self.events.first_entry().filter(|first| first.key().0 <= self.now);
        match due.map(|first| first.remove()) {
            None => self.input(Input::Tick),
            Some(Event::Begin(user, session)) => self.begin(user, session),
            Some(Event::End(user)) => self.end(user),
            Some(Event::Call(user)) => self.call_again(user),
            Some(Event::Wake(user)) => self.touch(user),
            Some(Event::Done(host, command)) => {
                self.input(Input::Outcome { host, command, outcome: HostOutcome::Done })
            }
        }
    }

    fn await_session(&mut self, user: usize) {
        if let Some(session) = self.users[user].sessions.next() {
            self.put(session.begin, Event::Begin(user, session));
        }
    }

    fn begin(&mut self, user: usize, session: Session) -> Result<(), ModelError> {
        self.count_time(user);
        self.put(session.end, Event::End(user));
        let now = self.now;
        let state = &mut self.users[user];
        state.busy_until = Some(session.end);
        if state.status == Some(SandboxStatus::Running) {
            self.run.waits.push(Millis::ZERO);
        } else {
            state.waits.push(now);
        }
        if state.status.is_some() { self.touch(user) } else { self.create(user) }
    }

    /// The last call of a session is its end: from then on its computer is idle. A resume that is
    /// still queued is kept.
    fn end(&mut self, user: usize) -> Result<(), ModelError> {
        self.count_time(user);
        self.users[user].busy_until = None;
        self.await_session(user);
        match self.users[user].status {
            Some(SandboxStatus::Running) => self.touch(user),
            _ => Ok(()),
        }
    }

    fn call_again(&mut self, user: usize) -> Result<(), ModelError> {
        self.users[user].calls = false;
        if !self.works(user) {
            return Ok(());
        }
        self.touch(user)
    }

    /// Whether a session is in progress on a running computer.
    fn works(&self, user: usize) -> bool {
        let state = &self.users[user];
        state.busy_until.is_some() && state.status == Some(SandboxStatus::Running)
    }

    /// Puts in the next call of a session that works.
    fn plan_call(&mut self, user: usize) {
        if self.works(user) && !self.users[user].calls {
            self.users[user].calls = true;
            let at = self.now + Millis::from_seconds(self.params.call_seconds);
            self.put(at, Event::Call(user));
        }
    }

    fn create(&mut self, user: usize) -> Result<(), ModelError> {
        self.run.users += 1;
        let decision = DecisionId(u128::from(self.number()));
        let create = CreateSandbox::new(id_of(user), decision, setup::template_name());
        self.call(user, Command::Create(Box::new(create)))
    }

    /// A call into the computer: activity, and wakes it.
    fn touch(&mut self, user: usize) -> Result<(), ModelError> {
        let decision = DecisionId(u128::from(self.number()));
        self.call(user, Command::Touch { id: id_of(user), decision })?;
        self.plan_call(user);
        Ok(())
    }

    fn call(&mut self, user: usize, command: Command) -> Result<(), ModelError> {
        let token = Token(u64::try_from(user).unwrap_or(u64::MAX));
        self.input(Input::Call { token, caller: self.caller.clone(), command })
    }

    /// Gives the engine one input and carries out what comes of it.
    fn input(&mut self, input: Input) -> Result<(), ModelError> {
        self.engine.handle(self.now, input, &mut self.out);
        #[cfg(test)]
        assert_eq!(self.engine.check(self.now), [], "at {:?}", self.now);
        self.out.changes.clear();
        for (_, reply) in std::mem::take(&mut self.out.replies) {
            self.reply(reply)?;
        }
        for observation in self.out.observations.drain(..) {
            if let Observation::Preemption(..) = observation {
                self.run.preemptions += 1;
            }
        }
        for effect in std::mem::take(&mut self.out.effects) {
            match effect {
                Effect::HostCommand { host, command, delay, .. } => {
                    let at = self.now + delay + self.takes(&command.op);
                    self.put(at, Event::Done(host, command));
                }
                Effect::SandboxChanged { id, status: Some(status), .. } => self.moved(id, status),
                _ => {}
            }
        }
        Ok(())
    }

    fn reply(&mut self, reply: Reply) -> Result<(), ModelError> {
        match reply {
            Reply::Sandbox { view, .. } => {
                let user = user_of(view.row.id);
                if self.users[user].status.is_none() {
                    let on_pool = view.row.pool.as_ref() == Some(&self.pool);
                    self.users[user].external = !on_pool;
                    self.run.on_pool += u64::from(on_pool);
                }
                Ok(())
            }
            Reply::Refused(refusal) => {
                Err(ModelError::Refused { code: refusal.code.as_str(), detail: refusal.detail })
            }
            _ => Ok(()),
        }
    }

    fn takes(&self, op: &HostOp) -> Millis {
        match op {
            HostOp::Start { .. } | HostOp::Resume { .. } => {
                Millis::from_seconds(self.params.resume_seconds)
            }
            HostOp::Pause { .. } => Millis::from_seconds(self.params.pause_seconds),
            HostOp::Stop { .. } | HostOp::End { .. } => Millis::ZERO,
        }
    }

    /// A computer has come into another state.
    fn moved(&mut self, id: SandboxId, status: SandboxStatus) {
        let user = user_of(id);
        self.count_time(user);
        let now = self.now;
        let state = &mut self.users[user];
        state.status = Some(status);
        match status {
            SandboxStatus::Running => {
                let waits = state.waits.drain(..);
                self.run.waits.extend(waits.map(|since| now.since(since)));
                self.plan_call(user);
            }
            SandboxStatus::Pausing if state.busy_until.is_some_and(|end| end > now) => {
                // The user's next call finds it going, and wants it back.
                state.waits.push(now);
                self.run.interrupted += 1;
                self.put(now, Event::Wake(user));
            }
            _ => {}
        }
    }

    /// Counts the time since this user's state last changed.
    fn count_time(&mut self, user: usize) {
        let state = &mut self.users[user];
        let time = self.now.since(state.counted);
        state.counted = self.now;
        let Some(status) = state.status else { return };
        if state.external {
            if status != SandboxStatus::Paused {
                self.run.external = Millis(self.run.external.0 + time.0);
            }
        } else if state.busy_until.is_some() && holds_slot(status, self.strategy.releases()) {
            self.run.used = Millis(self.run.used.0 + time.0);
        }
    }

    /// Sessions that wait at the end have waited until then.
    fn finish(mut self) -> Run {
        self.now = self.end;
        for user in 0..self.users.len() {
            self.count_time(user);
            let waits = std::mem::take(&mut self.users[user].waits);
            self.run.waits.extend(waits.into_iter().map(|since| self.end.since(since)));
        }
        self.run.waits.sort_unstable();
        self.run
    }
}

fn id_of(user: usize) -> SandboxId {
    SandboxId(u128::try_from(user).unwrap_or(u128::MAX))
}

fn user_of(id: SandboxId) -> usize {
    usize::try_from(id.0).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every invariant of the engine is held after every input in this crate's own tests.
    fn day(users: u64, strategy: Strategy, slots: u64) -> Run {
        let params = Params { slots, days: 1, ..Params::default() };
        run(users, strategy, &params, 7).unwrap()
    }

    #[test]
    fn invariants_hold_at_every_step_under_every_strategy() {
        for strategy in Strategy::ALL {
            let run = day(16, strategy, 3);
            assert_eq!(run.users, 16, "{strategy}");
            assert!(run.on_pool >= 3 && run.on_pool < 16, "{strategy}: {}", run.on_pool);
            assert!(run.waits.is_sorted());
        }
    }

    #[test]
    fn two_users_of_one_slot_take_turns_and_both_get_it() {
        // The second user's first session finds the slot free or is outside for good; with one
        // slot and no protection each preemption must still let the other have its turn.
        for seed in 0..20 {
            let params = Params { slots: 1, days: 1, ..Params::default() };
            let run = run(2, Strategy::PreemptLru, &params, seed).unwrap();
            // A turn takes a pause of 180 s and a run of 600 s at least: no more fit into a day.
            assert!(run.preemptions <= 86_400 / 780, "{seed}: {}", run.preemptions);
            assert!(run.waits.last().is_none_or(|wait| wait.0 < 3 * 3_600_000), "{seed}");
        }
    }

    #[test]
    fn a_session_met_by_a_running_computer_does_not_wait() {
        // Sessions a second apart on computers that idle for five minutes: only the first waits.
        let params =
            Params { slots: 1, days: 1, gap_seconds: 1, session_sigma: 0.0, ..Params::default() };
        let run = run(1, Strategy::Release, &params, 1).unwrap();
        let waited = run.waits.iter().filter(|wait| **wait > Millis::ZERO).count();
        assert_eq!(waited, 1);
        assert!(run.waits.len() > 30);
    }
}
