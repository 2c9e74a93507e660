//! What a verdict costs: pick the best host that fits, and charge it.
//!
//! `cargo bench -p plimsoll-bench --bench verdict` measures the placement index and a plain scan
//! of the same table, over fleets of several kinds and sizes, and ends with a table of medians and
//! of their ratio. Both keep ready-made scores, so the scan is the fastest that a scan can be, and
//! the ratio errs against the index. Medians of one run compare with each other; those of two runs
//! on a shared machine need not.
//!
//! One iteration of `verdict` is one request: pick, then put the host back with its admittable less the charge
//! and the score that follows. Each fleet stays as it is: requests are released in the order in
//! which they came, outside the measured time. One iteration of `update` is a report of any one host
//! that changes its admittable and score.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use plimsoll_engine::index::{PlacementIndex, Slot, better};
use plimsoll_policy::score::{request_ring, ring, score};
use plimsoll_types::Placement;

/// Fleet sizes, each with the most nanoseconds that the median of a verdict may take.
const SIZES: [(u32, f64); 3] = [(1_000, 500.0), (10_000, 1_000.0), (100_000, 2_000.0)];

/// Samples of one benchmark; the median is taken over as many.
const SAMPLES: usize = 50;

/// Requests between two readings of the clock: enough to make the reading cheap (some 2 ns each),
/// few enough that the smallest nearly full fleet still has room.
const BATCH: u64 = 16;

/// Distinct requests before they repeat, a power of two.
const REQUESTS: usize = 4_096;

/// What a fleet is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fleet {
    /// A few small guests here and there.
    Empty,
    /// Every host the same.
    Equal,
    /// 98 of 100 hosts do not fit; scores say nothing of which.
    NearlyFull,
    /// 98 of 100 hosts do not fit, and every score is the same.
    NearlyFullEqual,
    /// Hosts and requests of all sizes.
    Mixed,
    /// The same, filling the fullest host first.
    MixedPack,
    /// No host fits: the cost of a no.
    Full,
}

impl Fleet {
    const ALL: [Self; 7] = [
        Self::Empty,
        Self::Equal,
        Self::NearlyFull,
        Self::NearlyFullEqual,
        Self::Mixed,
        Self::MixedPack,
        Self::Full,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Equal => "equal",
            Self::NearlyFull => "nearly_full",
            Self::NearlyFullEqual => "nearly_full_equal",
            Self::Mixed => "mixed",
            Self::MixedPack => "mixed_pack",
            Self::Full => "full",
        }
    }

    const fn placement(self) -> Placement {
        match self {
            Self::MixedPack => Placement::Pack,
            _ => Placement::Spread,
        }
    }

    fn host(self, number: u32, dice: &mut Dice) -> Host {
        let (cpu_free_millis, admittable) = match self {
            Self::Empty => {
                let guests = dice.below(8);
                (64_000 - 1_000 * guests, 262_144 - 512 * guests)
            }
            Self::Equal => (64_000, 262_144),
            Self::NearlyFull if dice.below(100) < 98 => {
                (dice.below(64_000), dice.below(1_536) - 1_024)
            }
            Self::NearlyFull => (dice.below(64_000), 4_096 + dice.below(12_288)),
            Self::NearlyFullEqual if dice.below(100) < 98 => (0, dice.below(1_536) - 1_024),
            Self::NearlyFullEqual => (0, 4_096 + dice.below(12_288)),
            Self::Mixed | Self::MixedPack => (dice.below(64_000), dice.below(65_536) - 4_096),
            Self::Full => (dice.below(64_000), dice.below(1_536) - 1_024),
        };
        // Where all scores are to be the same, what is free is no part of them.
        let mem_free_mib = if self == Self::NearlyFullEqual { 0 } else { admittable };
        let ring = ring(&format!("host-{number}"));
        Host { admittable, cpu_free_millis, mem_free_mib, ring }
    }

    fn request(self, dice: &mut Dice) -> Request {
        let (charge_mib, vcpus) = match self {
            Self::Mixed | Self::MixedPack => {
                let size = dice.below(8);
                (128 << size, 1 + size)
            }
            _ => (512, 1),
        };
        let id = (u128::from(dice.next()) << 64) | u128::from(dice.next());
        Request { charge_mib, cpu_millis: 1_000 * vcpus, start: request_ring(id) }
    }
}

/// A host's figures, from which its score follows.
#[derive(Clone, Copy)]
struct Host {
    admittable: i64,
    cpu_free_millis: i64,
    mem_free_mib: i64,
    ring: u64,
}

impl Host {
    fn charge(&mut self, request: &Request, sign: i64) {
        self.admittable -= sign * request.charge_mib;
        self.cpu_free_millis -= sign * request.cpu_millis;
        self.mem_free_mib -= sign * request.charge_mib;
    }

    fn slot(&self, host: u32) -> Slot {
        let score = score(self.cpu_free_millis, self.mem_free_mib, false);
        Slot { host, admittable: self.admittable, score, ring: self.ring }
    }
}

struct Request {
    charge_mib: i64,
    cpu_millis: i64,
    start: u64,
}

/// What is compared.
trait Table {
    fn pick(&self, need: i64, start: u64, placement: Placement) -> Option<Slot>;
    fn put(&mut self, slot: Slot);
}

impl Table for PlacementIndex {
    fn pick(&self, need: i64, start: u64, placement: Placement) -> Option<Slot> {
        Self::pick(self, need, start, placement, |host| black_box(host) != u32::MAX)
    }

    fn put(&mut self, slot: Slot) {
        self.upsert(slot);
    }
}

/// The table without an index: every pick looks at every host.
#[derive(Default)]
struct Scan {
    slots: Vec<Slot>,
}

impl Table for Scan {
    fn pick(&self, need: i64, start: u64, placement: Placement) -> Option<Slot> {
        let mut best: Option<&Slot> = None;
        for slot in &self.slots {
            if slot.admittable >= need
                && best.is_none_or(|best| better(slot, best, start, placement))
            {
                best = Some(slot);
            }
        }
        best.copied()
    }

    fn put(&mut self, slot: Slot) {
        match self.slots.get_mut(slot.host as usize) {
            Some(held) => *held = slot,
            None => self.slots.push(slot),
        }
    }
}

/// A fleet under load.
struct Load<T> {
    table: T,
    hosts: Vec<Host>,
    requests: Vec<Request>,
    /// Which request comes next.
    turn: usize,
    placement: Placement,
    /// Whether there is to be room for each request.
    has_room: bool,
    /// Placed and not yet released: host and request, the oldest first.
    placed: VecDeque<(u32, usize)>,
    /// How many are kept placed.
    depth: usize,
}

impl<T: Table> Load<T> {
    fn new(mut table: T, fleet: Fleet, size: u32) -> Self {
        let mut dice = Dice(u64::from(size));
        let hosts: Vec<Host> = (0..size).map(|number| fleet.host(number, &mut dice)).collect();
        for (number, host) in (0..).zip(&hosts) {
            table.put(host.slot(number));
        }
        let mut load = Self {
            table,
            hosts,
            requests: (0..REQUESTS).map(|_| fleet.request(&mut dice)).collect(),
            turn: 0,
            placement: fleet.placement(),
            has_room: fleet != Fleet::Full,
            placed: VecDeque::new(),
            depth: (size as usize / 32).min(1_024),
        };
        load.place(load.depth as u64);
        load
    }

    /// The time of `count` verdicts.
    fn run(&mut self, count: u64) -> Duration {
        let mut spent = Duration::ZERO;
        let mut left = count;
        while left > 0 {
            let batch = left.min(BATCH);
            let began = Instant::now();
            self.place(batch);
            spent += began.elapsed();
            self.release();
            left -= batch;
        }
        spent
    }

    fn place(&mut self, count: u64) {
        for _ in 0..count {
            let turn = self.turn;
            self.turn = (turn + 1) % REQUESTS;
            let request = &self.requests[turn];
            let picked = self.table.pick(request.charge_mib, request.start, self.placement);
            assert_eq!(picked.is_some(), self.has_room, "the fleet is not what it was made to be");
            let Some(picked) = picked else { continue };
            let host = &mut self.hosts[picked.host as usize];
            host.charge(request, 1);
            self.table.put(host.slot(picked.host));
            self.placed.push_back((picked.host, turn));
        }
    }

    fn release(&mut self) {
        while self.placed.len() > self.depth {
            if let Some((number, turn)) = self.placed.pop_front() {
                let host = &mut self.hosts[number as usize];
                host.charge(&self.requests[turn], -1);
                self.table.put(host.slot(number));
            }
        }
    }
}

/// A fixed sequence of well-mixed numbers, so that every run has the same fleet.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 27)
    }

    fn below(&mut self, bound: u64) -> i64 {
        (self.next() % bound).cast_signed()
    }
}

/// Measures the verdicts of one table; the median in nanoseconds, or `None` where a filter leaves
/// it out.
fn verdict<T: Table>(
    criterion: &mut Criterion,
    name: &str,
    fleet: Fleet,
    size: u32,
    table: impl Fn() -> T,
) -> Option<f64> {
    let mut load = None;
    measure(criterion, format!("verdict/{}", fleet.name()), BenchmarkId::new(name, size), |count| {
        load.get_or_insert_with(|| Load::new(table(), fleet, size)).run(count)
    })
}

/// Measures reports into the index of a mixed fleet.
fn update(criterion: &mut Criterion, size: u32) -> Option<f64> {
    let mut load = None;
    let mut dice = Dice(0);
    measure(criterion, "update".to_owned(), BenchmarkId::new("index", size), |count| {
        let load = load.get_or_insert_with(|| Load::new(PlacementIndex::new(), Fleet::Mixed, size));
        let began = Instant::now();
        for _ in 0..count {
            let number = dice.below(u64::from(size)) as u32;
            let host = &mut load.hosts[number as usize];
            host.cpu_free_millis = dice.below(64_000);
            host.mem_free_mib = dice.below(65_536) - 4_096;
            host.admittable = host.mem_free_mib;
            load.table.put(host.slot(number));
        }
        began.elapsed()
    })
}

/// The median of a routine that takes a count of iterations and says their time.
fn measure(
    criterion: &mut Criterion,
    group: String,
    id: BenchmarkId,
    mut routine: impl FnMut(u64) -> Duration,
) -> Option<f64> {
    let mut samples = Vec::new();
    let mut group = criterion.benchmark_group(group);
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|count| {
            let spent = routine(count);
            samples.push(spent.as_nanos() as f64 / count as f64);
            spent
        });
    });
    group.finish();
    // The warm-up comes first.
    median(samples.split_off(samples.len().saturating_sub(SAMPLES)))
}

fn median(mut samples: Vec<f64>) -> Option<f64> {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied()
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(SAMPLES)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut rows = Vec::new();
    for fleet in Fleet::ALL {
        for (size, bar) in SIZES {
            let index = verdict(&mut criterion, "index", fleet, size, PlacementIndex::new);
            let scan = verdict(&mut criterion, "scan", fleet, size, Scan::default);
            if let (Some(index), Some(scan)) = (index, scan) {
                rows.push((fleet, size, index, scan, bar));
            }
        }
    }
    let updates = SIZES.map(|(size, _)| (size, update(&mut criterion, size)));
    criterion.final_summary();
    if !rows.is_empty() {
        println!("\nmedian ns of a verdict: pick and reserve");
        println!("fleet                hosts     index        scan   ratio    bar");
    }
    for (fleet, size, index, scan, bar) in rows {
        let (name, ratio) = (fleet.name(), scan / index);
        let within = if index <= bar { "" } else { "  above" };
        println!("{name:<18} {size:>7} {index:>9.0} {scan:>11.0} {ratio:>7.0} {bar:>6.0}{within}");
    }
    for (size, median) in updates {
        if let Some(median) = median {
            println!("update of one host {size:>7} {median:>9.0}");
        }
    }
}
