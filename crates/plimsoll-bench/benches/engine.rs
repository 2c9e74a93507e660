//! The engine in memory: admit, commit and release of one reservation, over so many live records.
//!
//! `cargo bench -p plimsoll-bench --bench engine`. One iteration is three inputs, the making of the
//! request included; the reported throughput counts iterations. DESIGN 11: at least 1 000 000 a
//! second on one core, flat from 1 000 to 1 000 000 live records.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark that cannot go on panics")]

mod bed;

use bed::Bed;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Hosts of the fleet; each has room for every record of the largest run.
const HOSTS: u32 = 100;

fn engine(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("admit_commit_release");
    group.throughput(Throughput::Elements(1));
    let caller = bed::default_tenant();
    for live in [1_000_u64, 100_000, 1_000_000] {
        let mut bed = Bed::new(HOSTS);
        for _ in 0..live {
            bed.reserve(&caller);
            bed.out.clear();
        }
        for _ in 0..20_000 {
            bed.cycle(&caller);
        }
        group.bench_function(BenchmarkId::from_parameter(live), |timer| {
            timer.iter(|| bed.cycle(&caller));
        });
    }
    group.finish();
}

criterion_group!(benches, engine);
criterion_main!(benches);
