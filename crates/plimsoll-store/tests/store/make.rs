//! Rows with every field filled from a seed, so that a column that is lost or swapped shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_engine::Change;
use plimsoll_engine::rows::{
    ConcurrencyLimits, ConsumptionLimits, DecisionRow, EndpointRow, EventRow, HostRow, KeyRow,
    Limit, Meter, PausedBy, PlanLimits, PlanRow, PoolRow, PoolSettings, RateLimits, ReservationRow,
    ReservationState, Role, SandboxRow, SandboxSpec, SigningSecret, TemplateRow, TenantRow,
    TenantStateRow, Totals, UsageRow, Verb,
};
use plimsoll_types::{
    BasisPoints, ClaimId, Criticality, DecisionId, Driver, EndpointId, EventId, Fence,
    FilterCounts, HostFilter, HostId, KeyId, Lifecycle, Mib, OnFull, PauseKind, Placement, PlanId,
    PolicyMode, PoolName, Preemption, PreemptionMode, RefusalCode, Regime, ReservationId,
    ReserveRule, SandboxId, SandboxStatus, TemplateName, TenantId, Timestamp, Vcpus,
};

use crate::backend::NOW;

/// An hour in milliseconds.
pub(crate) const HOUR: i64 = 3_600_000;

/// Draws values from a seed (SplitMix64).
pub(crate) struct Make(u64);

impl Make {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn flag(&mut self) -> bool {
        self.next() & 1 == 1
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.flag() { Some(make(self)) } else { None }
    }

    /// Mostly small, now and then as large as it can be.
    fn number(&mut self) -> u64 {
        if self.below(8) == 0 { u64::MAX - self.below(3) } else { self.below(100_000) }
    }

    fn u128(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }

    /// Text with what trips an encoder: quotes, zero bytes, letters of every width.
    fn text(&mut self) -> String {
        const LETTERS: [char; 12] =
            ['a', 'Z', '0', ' ', '"', '\'', '\\', '\0', '\n', 'é', '船', '🚢'];
        let length = self.below(12);
        (0..length).map(|_| self.of(&LETTERS)).collect()
    }

    fn name(&mut self) -> String {
        format!("n{}", self.below(1_000))
    }

    fn words(&mut self) -> Vec<String> {
        (0..self.below(4)).map(|_| self.text()).collect()
    }

    fn pairs(&mut self) -> BTreeMap<String, String> {
        (0..self.below(4)).map(|_| (self.text(), self.text())).collect()
    }

    fn counted(&mut self) -> BTreeMap<String, u64> {
        (0..self.below(3)).map(|_| (self.text(), self.number())).collect()
    }

    fn time(&mut self) -> Timestamp {
        Timestamp(NOW.0 - self.below(1_000_000_000) as i64)
    }

    fn claim(&mut self) -> ClaimId {
        if self.flag() {
            ClaimId::Sandbox(SandboxId(self.u128()))
        } else {
            ClaimId::Reservation(ReservationId(self.u128()))
        }
    }

    fn limit(&mut self) -> Limit {
        Limit { limit: self.maybe(Self::number), burst_limit: self.maybe(Self::number) }
    }

    fn limits(&mut self) -> PlanLimits {
        PlanLimits {
            concurrency: ConcurrencyLimits {
                sandboxes: self.limit(),
                vcpus: self.limit(),
                memory_mib: self.limit(),
            },
            consumption: ConsumptionLimits {
                cpu_seconds: self.maybe(Self::number),
                gib_hours: self.maybe(Self::number),
                egress_bytes: self.maybe(Self::number),
            },
            rate: RateLimits {
                creates_per_minute: self.maybe(Self::number),
                creates_per_hour: self.maybe(Self::number),
                forks_per_minute: self.maybe(Self::number),
                forks_per_hour: self.maybe(Self::number),
                resumes_per_minute: self.maybe(Self::number),
                resumes_per_hour: self.maybe(Self::number),
            },
        }
    }

    fn lifecycle(&mut self) -> Lifecycle {
        Lifecycle {
            idle_timeout_seconds: self.maybe(|make| make.below(1_000) as i64 - 1),
            max_run_seconds: self.maybe(|make| make.below(1_000) as i64 - 1),
            max_paused_seconds: self.maybe(|make| make.below(1_000) as i64 - 1),
            ttl_seconds: self.maybe(|make| make.below(1_000) as i64 - 1),
        }
    }

    fn spec(&mut self) -> SandboxSpec {
        if self.below(3) == 0 {
            return SandboxSpec::default();
        }
        SandboxSpec {
            command: self.words(),
            env: self.pairs(),
            counted: self.counted(),
            host_labels: self.pairs(),
            rootfs: self.maybe(Self::text),
            baked: self.flag(),
            requested_pool: self.maybe(|make| pool(&make.name())),
            fork_of: self.maybe(|make| SandboxId(make.u128())),
            lifecycle: self.lifecycle(),
        }
    }

    pub(crate) fn plan(&mut self, id: &str) -> PlanRow {
        PlanRow { id: PlanId::new(id).unwrap(), limits: self.limits() }
    }

    pub(crate) fn tenant(&mut self, id: &str) -> TenantRow {
        TenantRow {
            id: tenant(id),
            plan: PlanId::new(&self.name()).unwrap(),
            payment_method: self.flag(),
            payment_method_ever: self.flag(),
            created_at: self.time(),
            overrides: self.limits(),
            suspended: self.maybe(Self::text),
            anchor_day: self.maybe(|make| make.below(31) as u8 + 1),
        }
    }

    pub(crate) fn tenant_state(&mut self, id: &str) -> TenantStateRow {
        TenantStateRow {
            tenant: tenant(id),
            state: serde_json::json!({"credit": self.number(), "ladder": self.text()}),
        }
    }

    pub(crate) fn pool(&mut self, name: &str) -> PoolRow {
        PoolRow {
            name: pool(name),
            settings: PoolSettings {
                limit: self.maybe(Self::number),
                regime: self.of(Regime::ALL),
                pause: self.of(PauseKind::ALL),
                preemption: Preemption {
                    mode: self.of(PreemptionMode::ALL),
                    idle_seconds: self.number(),
                    min_run_seconds: self.number(),
                },
                placement: self.of(Placement::ALL),
                overflow: (0..self.below(3)).map(|_| pool(&self.name())).collect(),
                external: self.flag(),
                reserve: ReserveRule {
                    floor_mib: Mib(self.number()),
                    fraction_bp: BasisPoints(self.number()),
                    ttl_seconds: self.number(),
                },
                settle_seconds: self.number(),
                decay_seconds: self.number(),
                max_vcpu_ratio_bp: self.maybe(|make| BasisPoints(make.number())),
                lifecycle: self.lifecycle(),
                ..PoolSettings::default()
            },
        }
    }

    pub(crate) fn template(&mut self, name: &str) -> TemplateRow {
        TemplateRow {
            name: template(name),
            driver: self.of(Driver::ALL),
            memory_mib: Mib(self.number()),
            overhead_mib: Mib(self.number()),
            vcpus: Vcpus(self.number()),
            stateful: self.flag(),
            rootfs: self.maybe(Self::text),
            command: self.words(),
            env: self.pairs(),
            host_labels: self.pairs(),
            counted: self.counted(),
            baked: self.flag(),
            pool: self.maybe(|make| pool(&make.name())),
        }
    }

    pub(crate) fn key(&mut self, id: u128) -> KeyRow {
        KeyRow {
            id: KeyId(id),
            role: self.of(&[Role::Tenant, Role::Operator, Role::Host]),
            tenant: self.maybe(|make| tenant(&make.name())),
            host: self.maybe(|make| host(&make.name())),
            hash: format!("{:016x}", self.next()),
            created_at: self.time(),
        }
    }

    pub(crate) fn host(&mut self, id: &str) -> HostRow {
        HostRow {
            id: host(id),
            pool: pool(&self.name()),
            address: self.maybe(Self::text),
            secret: self.maybe(Self::text),
            incarnation: self.number(),
            command_numbers_through: self.number(),
            draining: self.flag(),
            enrolled_at: self.time(),
            boot_id: self.maybe(Self::text),
            old_boots: (0..self.below(3)).map(|_| self.text()).collect(),
        }
    }

    /// A sandbox in any state; an ended one ended a moment ago.
    pub(crate) fn sandbox(&mut self, id: u128) -> SandboxRow {
        let status = self.of(SandboxStatus::ALL);
        SandboxRow {
            id: SandboxId(id),
            tenant: tenant(&self.name()),
            template: template(&self.name()),
            spec: Arc::new(self.spec()),
            key: self.maybe(|make| Arc::from(make.text())),
            labels: (&self.pairs()).into(),
            status,
            reason: self.maybe(|make| Arc::from(make.text())),
            status_since: self.time(),
            pool: self.maybe(|make| pool(&make.name())),
            host: self.maybe(|make| host(&make.name())),
            driver: self.of(Driver::ALL),
            attempt: self.next() as u32,
            fence: Fence { epoch: self.number(), number: self.number() },
            memory_mib: Mib(self.number()),
            overhead_mib: Mib(self.number()),
            vcpus: Vcpus(self.number()),
            stateful: self.flag(),
            priority: self.next() as i32,
            preemptible: self.flag(),
            criticality: self.of(Criticality::ALL),
            on_full: self.of(OnFull::ALL),
            slot_released: self.flag(),
            idled: self.flag(),
            resume_requested_at: self.maybe(Self::time),
            brought_in_at: self.maybe(Self::time),
            preempted_for: self.maybe(|make| SandboxId(make.u128())),
            queued_at: self.time(),
            created_at: self.time(),
            started_at: self.maybe(Self::time),
            last_active_at: self.time(),
            ended_at: status.is_terminal().then_some(NOW),
            exit_code: self.maybe(|make| make.next() as i32),
            charge_mib: Mib(self.number()),
            resident_mib: self.maybe(|make| Mib(make.number())),
            measured: self.flag(),
            decision_id: DecisionId(self.u128()),
            body_hash: self.next(),
            paused_by: self.maybe(|make| make.of(&PausedBy::ALL)),
            meter: self.meter(),
        }
    }

    /// A reservation in any state; an ended one ended a moment ago.
    pub(crate) fn reservation(&mut self, id: u128) -> ReservationRow {
        let state = self.of(&[
            ReservationState::Reserved,
            ReservationState::Committed,
            ReservationState::Released,
            ReservationState::Expired,
        ]);
        ReservationRow {
            id: ReservationId(id),
            tenant: tenant(&self.name()),
            key: Arc::from(self.text()),
            body_hash: self.next(),
            state,
            pool: pool(&self.name()),
            host: host(&self.name()),
            memory_mib: Mib(self.number()),
            vcpus: Vcpus(self.number()),
            stateful: self.flag(),
            charge_mib: Mib(self.number()),
            generation: self.number(),
            cgroup: self.maybe(|make| Arc::from(make.text())),
            created_at: self.time(),
            expires_at: self.time(),
            ended_at: (!state.holds()).then_some(NOW),
            decision_id: DecisionId(self.u128()),
            meter: self.meter(),
        }
    }

    fn meter(&mut self) -> Meter {
        let mut meter = Meter::default();
        for attempt in 0..self.below(3) as u32 {
            let totals = Totals { cpu_millis: self.number(), egress_bytes: self.number() };
            meter.credit(attempt, totals);
            meter.at = self.time();
            meter.full_since = self.maybe(Self::time);
        }
        meter
    }

    pub(crate) fn decision(&mut self, id: u128) -> DecisionRow {
        let mut counts = FilterCounts::default();
        for _ in 0..self.below(20) {
            let filter = self.of(&HostFilter::ALL);
            counts.count(filter);
        }
        for _ in 0..self.below(3) {
            counts.count_candidate();
        }
        DecisionRow {
            id: DecisionId(id),
            at: self.time(),
            tenant: tenant(&self.name()),
            verb: self.of(&[
                Verb::Create,
                Verb::Fork,
                Verb::Resume,
                Verb::Reserve,
                Verb::ReserveBatch,
            ]),
            code: self.maybe(|make| make.of(RefusalCode::ALL)),
            object: self.maybe(Self::claim),
            pool: self.maybe(|make| pool(&make.name())),
            host: self.maybe(|make| host(&make.name())),
            memory_mib: Mib(self.number()),
            vcpus: Vcpus(self.number()),
            stateful: self.flag(),
            charge_mib: Mib(self.number()),
            items: self.next() as u32,
            policy_version: self.number(),
            policy_mode: self.of(PolicyMode::ALL),
            counts,
            slots: self.maybe(|make| (make.number(), make.maybe(Self::number))),
            detail: self.maybe(|make| Arc::from(make.text())),
        }
    }

    pub(crate) fn event(&mut self, id: u128) -> EventRow {
        EventRow {
            id: EventId(id),
            at: self.time(),
            kind: self.text(),
            tenant: self.maybe(|make| tenant(&make.name())),
            data: serde_json::json!({"text": self.text(), "numbers": [self.number(), null, -1]}),
        }
    }

    pub(crate) fn endpoint(&mut self, id: u128) -> EndpointRow {
        EndpointRow {
            id: EndpointId(id),
            tenant: self.maybe(|make| tenant(&make.name())),
            url: self.text(),
            events: self.words(),
            description: self.text(),
            secrets: self.secrets(),
            disabled: self.maybe(Self::text),
            created_at: self.time(),
            cursor: EventId(self.u128()),
            failing_since: self.maybe(Self::time),
        }
    }

    fn secrets(&mut self) -> Vec<SigningSecret> {
        let words = self.words();
        words
            .into_iter()
            .map(|secret| SigningSecret { secret, valid_until: self.maybe(Self::time) })
            .collect()
    }

    pub(crate) fn usage(&mut self, claim: ClaimId, hours_ago: i64) -> UsageRow {
        UsageRow {
            tenant: tenant("metered"),
            claim,
            hour: Timestamp(NOW.0 - hours_ago * HOUR),
            cpu_millis: self.below(1_000_000),
            charged_mib_millis: self.below(1_000_000),
            resident_mib_millis: self.below(1_000_000),
            egress_bytes: self.below(1_000_000),
        }
    }

    pub(crate) fn policy(&mut self, name: &str) -> Change {
        Change::Policy {
            pool: pool(name),
            version: self.number(),
            received_at: self.time(),
            envelope: self.text(),
        }
    }
}

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

pub(crate) fn pool(name: &str) -> PoolName {
    PoolName::new(name).unwrap()
}

pub(crate) fn host(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

pub(crate) fn template(name: &str) -> TemplateName {
    TemplateName::new(name).unwrap()
}
