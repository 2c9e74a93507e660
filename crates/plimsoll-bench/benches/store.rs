//! How fast rows become durable, and how fast they come back.
//!
//! `cargo bench -p plimsoll-bench --bench store [-- commit | restart [rows]]`. The database lies
//! under cargo's target folder, or under `PLIMSOLL_BENCH_DIR`: a folder in memory would measure no
//! disk. Every figure stands beside the bare cost of one sync of the same disk in the same run.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_engine::Change;
use plimsoll_engine::rows::{
    DecisionRow, Meter, ReservationRow, ReservationState, SandboxRow, SandboxSpec, Totals,
    UsageRow, Verb,
};
use plimsoll_store::{Lease, LoadLimits, SqliteSettings, SqliteStore, Store};
use plimsoll_types::{
    ClaimId, Criticality, DecisionId, Driver, Fence, FilterCounts, HostId, Mib, OnFull, PolicyMode,
    PoolName, ReservationId, SandboxId, SandboxStatus, TemplateName, TenantId, Timestamp, Vcpus,
};

/// How long each commit figure is measured.
const MEASURE: Duration = Duration::from_secs(4);

const NOW: Timestamp = Timestamp(1_800_000_000_000);

fn main() {
    // Cargo adds flags of its own.
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| words.first().is_none_or(|only| only == name);
    let folder = std::env::var_os("PLIMSOLL_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    println!("in {}", folder.display());
    if wanted("commit") {
        println!("one sync of 16 KiB appended: {:.0} us at the median", sync_micros(&folder));
        for (items, decisions) in [(1, 1), (100, 1), (1_000, 10), (10_000, 100)] {
            commits(&folder, "batches of 100", items, decisions);
        }
        for items in [100, 1_000, 10_000] {
            commits(&folder, "one by one", items, items);
        }
        lives(&folder);
        println!("one sync of 16 KiB appended: {:.0} us at the median", sync_micros(&folder));
    }
    if wanted("restart") {
        let rows = words.iter().find_map(|word| word.parse().ok());
        for rows in rows.map_or_else(|| vec![100_000, 1_000_000], |rows| vec![rows]) {
            restart(&folder, "sandboxes", rows, |ids| Change::Sandbox(Box::new(sandbox(ids))));
            restart(&folder, "reservations", rows, |ids| {
                Change::Reservation(reservation(ids).into())
            });
            restart(&folder, "hours of use", rows, |ids| Change::Usage(usage(ids)));
        }
    }
}

/// Ids as a cell makes them: milliseconds, a counter, and a number of its own.
struct Ids {
    made: u64,
    noise: u64,
    tenant: TenantId,
    pool: PoolName,
    hosts: Vec<HostId>,
    template: TemplateName,
    spec: Arc<SandboxSpec>,
}

impl Ids {
    fn new() -> Self {
        let name = "a checked name";
        Self {
            made: 0,
            noise: 1,
            tenant: TenantId::new("default").expect(name),
            pool: PoolName::new("local").expect(name),
            hosts: (0..1_000)
                .map(|number| HostId::new(&format!("host-{number}")).expect(name))
                .collect(),
            template: TemplateName::new("shell").expect(name),
            spec: Arc::new(SandboxSpec {
                command: ["sh", "-c", "sleep 60"].map(str::to_owned).to_vec(),
                ..SandboxSpec::default()
            }),
        }
    }

    fn next(&mut self) -> u128 {
        self.made += 1;
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let millis = NOW.0.unsigned_abs() + self.made / 150;
        u128::from(millis) << 80 | u128::from(self.made) << 46 | 0x2a_2a2a_2a2a
    }

    fn host(&self) -> HostId {
        self.hosts[(self.noise >> 40) as usize % self.hosts.len()].clone()
    }
}

fn reservation(ids: &mut Ids) -> ReservationRow {
    let id = ids.next();
    ReservationRow {
        id: ReservationId(id),
        tenant: ids.tenant.clone(),
        key: Arc::from(format!("{:032x}", id ^ u128::from(ids.noise))),
        body_hash: ids.noise,
        state: ReservationState::Reserved,
        pool: ids.pool.clone(),
        host: ids.host(),
        memory_mib: Mib(512),
        vcpus: Vcpus(1),
        stateful: false,
        charge_mib: Mib(512),
        generation: 1,
        cgroup: None,
        created_at: NOW,
        expires_at: NOW,
        ended_at: None,
        decision_id: DecisionId(id),
        meter: Meter::default(),
    }
}

fn decision(ids: &mut Ids) -> DecisionRow {
    let mut counts = FilterCounts::default();
    counts.count_candidate();
    let id = ids.next();
    DecisionRow {
        id: DecisionId(id),
        at: NOW,
        tenant: ids.tenant.clone(),
        verb: Verb::Reserve,
        code: None,
        object: Some(ClaimId::Reservation(ReservationId(id))),
        pool: Some(ids.pool.clone()),
        host: Some(ids.host()),
        memory_mib: Mib(512),
        vcpus: Vcpus(1),
        stateful: false,
        charge_mib: Mib(512),
        items: 1,
        policy_version: 0,
        policy_mode: PolicyMode::Normal,
        counts,
        slots: Some((1, None)),
        detail: None,
    }
}

fn sandbox(ids: &mut Ids) -> SandboxRow {
    let id = ids.next();
    let mut meter = Meter::default();
    meter.at = NOW;
    meter.credit(1, Totals { cpu_millis: ids.made, egress_bytes: 0 });
    SandboxRow {
        id: SandboxId(id),
        tenant: ids.tenant.clone(),
        template: ids.template.clone(),
        spec: Arc::clone(&ids.spec),
        key: None,
        labels: [("team", "ci")].into(),
        status: SandboxStatus::Running,
        reason: None,
        status_since: NOW,
        pool: Some(ids.pool.clone()),
        host: Some(ids.host()),
        driver: Driver::Process,
        attempt: 1,
        fence: Fence { epoch: 1, number: ids.made },
        memory_mib: Mib(512),
        overhead_mib: Mib(0),
        vcpus: Vcpus(1),
        stateful: false,
        priority: 0,
        preemptible: true,
        criticality: Criticality::Standard,
        on_full: OnFull::Reject,
        slot_released: false,
        idled: false,
        resume_requested_at: None,
        brought_in_at: None,
        preempted_for: None,
        queued_at: NOW,
        created_at: NOW,
        started_at: Some(NOW),
        last_active_at: NOW,
        ended_at: None,
        exit_code: None,
        charge_mib: Mib(512),
        resident_mib: Some(Mib(41)),
        measured: true,
        decision_id: DecisionId(id),
        body_hash: 0,
        paused_by: None,
        meter,
    }
}

/// An hour of a sandbox that is no more; a thousand of them in each hour.
fn usage(ids: &mut Ids) -> UsageRow {
    let claim = ClaimId::Sandbox(SandboxId(ids.next()));
    let hours_ago = (ids.made / 1_000) as i64;
    UsageRow {
        tenant: ids.tenant.clone(),
        claim,
        hour: Timestamp(NOW.0 - hours_ago * 3_600_000),
        cpu_millis: 1_000,
        charged_mib_millis: 512 * 60_000,
        resident_mib_millis: 41 * 60_000,
        egress_bytes: 0,
    }
}

/// What the processor has spent on this thread, where the system says so: unlike the time that has
/// passed, it does not count waiting for the disk or for other programs.
fn thread_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Times of commits, one by one, and the processor's time in sum.
#[derive(Default)]
struct Times {
    each: Vec<Duration>,
    sum: Duration,
    cpu: Duration,
}

impl Times {
    fn commit(&mut self, store: &mut SqliteStore, lease: &Lease, batch: &[Change]) {
        let cpu = thread_cpu();
        let begun = Instant::now();
        store.commit(lease, batch).expect("a commit");
        let took = begun.elapsed();
        self.cpu += thread_cpu().saturating_sub(cpu);
        self.each.push(took);
        self.sum += took;
    }

    fn report(mut self, what: &str, items: usize, rows: usize) {
        let count = self.each.len() as f64;
        let sum = self.sum.as_secs_f64();
        self.each.sort_unstable();
        let at = |share: f64| self.each[((count - 1.0) * share) as usize].as_secs_f64() * 1e3;
        println!(
            "{what}, {items} a transaction: {:.0} items/s, {:.0} rows/s, {:.2} us of processor a \
             row; commit {:.2} ms median, {:.2} ms p99, {:.2} ms max",
            items as f64 * count / sum,
            rows as f64 * count / sum,
            self.cpu.as_secs_f64() * 1e6 / (rows as f64 * count),
            at(0.5),
            at(0.99),
            at(1.0),
        );
    }
}

/// The median of what one appended and synced write takes.
fn sync_micros(folder: &Path) -> f64 {
    let path = folder.join("plimsoll-bench-sync");
    let mut file = File::create(&path).expect("the folder is writable");
    let mut took: Vec<Duration> = (0..200)
        .map(|_| {
            let begun = Instant::now();
            file.write_all(&[7; 16 * 1024]).expect("a write");
            file.sync_all().expect("a sync");
            begun.elapsed()
        })
        .collect();
    std::fs::remove_file(&path).expect("the file was made above");
    took.sort_unstable();
    took[took.len() / 2].as_secs_f64() * 1e6
}

/// An empty database, with its folder, which goes when it is dropped.
fn open(folder: &Path) -> (tempfile::TempDir, SqliteStore, Lease) {
    let folder = tempfile::tempdir_in(folder).expect("the folder is writable");
    let mut store = reopen(folder.path());
    let lease = store.acquire("bench", NOW).expect("a lease");
    (folder, store, lease)
}

fn reopen(folder: &Path) -> SqliteStore {
    SqliteStore::open(&folder.join("bench.db"), SqliteSettings::default()).expect("it opens")
}

/// Commits batches of new reservations with their decisions, one after another.
fn commits(folder: &Path, kind: &str, items: usize, decisions: usize) {
    let (_folder, mut store, lease) = open(folder);
    let mut ids = Ids::new();
    let mut times = Times::default();
    while times.sum < MEASURE {
        let mut batch = Vec::with_capacity(items + decisions);
        for item in 0..items {
            batch.push(Change::Reservation(reservation(&mut ids).into()));
            if (item + 1).is_multiple_of(items / decisions) {
                batch.push(Change::Decision(decision(&mut ids).into()));
            }
        }
        times.commit(&mut store, &lease, &batch);
    }
    times.report(&format!("reserve, {kind}"), items, items + decisions);
}

/// Takes reservations through their lives: made, committed, released, a thousand at a time.
fn lives(folder: &Path) {
    const ITEMS: usize = 1_000;
    let (_folder, mut store, lease) = open(folder);
    let mut ids = Ids::new();
    let mut times = Times::default();
    while times.sum < MEASURE {
        let mut rows: Vec<ReservationRow> = (0..ITEMS).map(|_| reservation(&mut ids)).collect();
        for state in
            [ReservationState::Reserved, ReservationState::Committed, ReservationState::Released]
        {
            for row in &mut rows {
                row.state = state;
                row.generation += 1;
                row.ended_at = (!state.holds()).then_some(NOW);
            }
            let batch: Vec<Change> =
                rows.iter().map(|row| Change::Reservation(row.clone().into())).collect();
            times.commit(&mut store, &lease, &batch);
        }
    }
    times.report("made, committed, released", ITEMS, ITEMS);
}

/// Fills a database and loads it as a restart does: a new process with a log to read first.
fn restart(folder: &Path, what: &str, rows: usize, make: impl Fn(&mut Ids) -> Change) {
    let (folder, mut store, lease) = open(folder);
    let mut ids = Ids::new();
    for _ in 0..rows / 1_000 {
        let batch: Vec<Change> = (0..1_000).map(|_| make(&mut ids)).collect();
        store.commit(&lease, &batch).expect("a commit");
    }
    // As after `kill -9`: the log is not copied on the way out. What a copy of the database may
    // miss of a copying thread's work stands in the log as well.
    std::mem::forget(store);
    let copy = tempfile::tempdir_in(folder.path()).expect("the folder is writable");
    for file in ["bench.db", "bench.db-wal"] {
        std::fs::copy(folder.path().join(file), copy.path().join(file)).expect("a copy");
    }
    let begun = Instant::now();
    let mut store = reopen(copy.path());
    let lease = store.acquire("bench", NOW).expect("a lease");
    let opened = begun.elapsed();
    let loaded = store.load(&lease, NOW, &LoadLimits::default()).expect("a load");
    let took = begun.elapsed();
    // Of use that is old, only sums come back.
    let found = loaded.sandboxes.len() + loaded.reservations.len();
    assert!(found == rows || found == 0 && !loaded.usage.is_empty());
    println!(
        "restart with {rows} {what}: open {:.0} ms, load {:.0} ms, {:.0} rows/s",
        opened.as_secs_f64() * 1e3,
        (took - opened).as_secs_f64() * 1e3,
        rows as f64 / took.as_secs_f64(),
    );
}
