//! What a tenant's limits cost a decision, and what metering costs a heartbeat.
//!
//! `cargo bench -p plimsoll-bench --bench quota`. DESIGN 11: rate and quota check inside a decision
//! at most 200 ns. What tenants cost by being there is in `tenants.rs`.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark that cannot go on panics")]

mod bed;

use std::hint::black_box;

use bed::{Bed, NOW, all_limits};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_engine::Command;
use plimsoll_engine::rows::PlanLimits;
use plimsoll_policy::consumption::Amounts;
use plimsoll_policy::quota::{Bursts, Usage, check_all};
use plimsoll_policy::rate::{Buckets, Operation};
use plimsoll_types::{ClaimId, GuestReport, GuestStatus, Mib, Millis, ReservationId};

/// The arithmetic of one decision under every limit: rate, budget, quota, and the tokens taken.
fn check(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("limits");
    let limits = all_limits();
    let (mut buckets, mut bursts) = (Buckets::default(), Bursts::default());
    let used = Usage { sandboxes: 100, vcpus: 200, memory_mib: 51_200 };
    let incoming = Usage { sandboxes: 1, vcpus: 1, memory_mib: 512 };
    let spent = Amounts { cpu_millis: 1, charged_mib_millis: 1, ..Amounts::default() };
    for (name, operation) in [("create", Operation::Create), ("fork", Operation::Fork)] {
        let mut now = NOW;
        group.bench_function(BenchmarkId::new("check_and_take", name), |bencher| {
            bencher.iter(|| {
                now = now + Millis(1);
                let limits = black_box(&limits);
                assert!(buckets.would_take(operation, 1, &limits.rate, now).is_ok());
                assert!(!limits.consumption.is_exhausted(black_box(&spent)));
                bursts.advance(black_box(&used), &limits.concurrency, now);
                assert!(check_all(&used, &incoming, &limits.concurrency, &bursts).is_ok());
                buckets.take(operation, 1, &limits.rate, now)
            });
        });
    }
    group.finish();
}

/// A heartbeat with so many guests that have all used something: metering included, by guest.
fn metering(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("heartbeat");
    for guests in [100_u64, 1_000] {
        let mut bed = Bed::new(1);
        bed.tenants(100, all_limits(), PlanLimits::default());
        let ids: Vec<ReservationId> = (0..guests)
            .map(|number| {
                let caller = bed::tenant(number % 100);
                let id = bed.reserve(&caller);
                bed.call(&caller, Command::Commit { id, cgroup: None });
                id
            })
            .collect();
        let mut used = 0;
        group.throughput(Throughput::Elements(guests));
        group.bench_function(BenchmarkId::new("guests", guests), |bencher| {
            bencher.iter(|| {
                bed.now = bed.now + Millis(10_000);
                used += 1_000;
                let guest = |id: &ReservationId| {
                    let (id, memory) = (ClaimId::Reservation(*id), Mib(4));
                    GuestReport {
                        cpu_millis_total_used: used,
                        egress_bytes_total: used,
                        ..GuestReport::new(id, GuestStatus::Running, memory, memory)
                    }
                };
                bed.report(0, ids.iter().map(guest).collect());
            });
        });
    }
    group.finish();
}

criterion_group!(benches, check, metering);
criterion_main!(benches);
