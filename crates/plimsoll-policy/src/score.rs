//! Which of the hosts that fit is preferred, and how ties are spread (DESIGN 4.3, 7).

use plimsoll_types::Placement;

/// Free amounts beyond this are scored as this: far above any machine, and small enough that the
/// weighted sum stays within 64 bits.
const FREE_MAX: i64 = 1 << 50;

/// What a host gains for booting guests without pulling their whole memory first, in thousandths.
const STREAM_RESTORE: i64 = 5000;

/// 600 thousandths per free core and 300 per free GiB, floored once over the sum.
const fn emptiness(cpu_free_millis: i64, mem_free_mib: i64) -> i64 {
    // 600/1000 per thousandth of a core and 300/1024 per MiB over their common denominator.
    let cpu = clamp(cpu_free_millis) * 768;
    let memory = clamp(mem_free_mib) * 375;
    (cpu + memory).div_euclid(1280)
}

const fn clamp(amount: i64) -> i64 {
    if amount > FREE_MAX {
        FREE_MAX
    } else if amount < -FREE_MAX {
        -FREE_MAX
    } else {
        amount
    }
}

/// The score of a host in thousandths: 600 per free core, 300 per free GiB, 5 000 for stream
/// restore. Floored once.
///
/// Both amounts are what is free after everything admitted since the last report; they may be
/// negative. Scoring what the report alone says would pile a burst onto one host.
///
/// ```
/// use plimsoll_policy::score::score;
///
/// assert_eq!(score(11_800, 28_588, true), 7_080 + 8_375 + 5_000);
/// assert_eq!(score(0, -1, false), -1);
/// ```
#[must_use]
pub const fn score(cpu_free_millis: i64, mem_free_mib: i64, stream_restore: bool) -> i64 {
    let bonus = if stream_restore { STREAM_RESTORE } else { 0 };
    emptiness(cpu_free_millis, mem_free_mib) + bonus
}

/// How much a host is preferred under a placement; the highest wins.
///
/// `pack` prefers the fullest host that still fits. It does not invert the bonus for stream
/// restore: a slow boot is no more welcome on a packed fleet.
#[must_use]
pub const fn preference(
    placement: Placement,
    cpu_free_millis: i64,
    mem_free_mib: i64,
    stream_restore: bool,
) -> i64 {
    match placement {
        Placement::Spread => score(cpu_free_millis, mem_free_mib, stream_restore),
        Placement::Pack => {
            let bonus = if stream_restore { STREAM_RESTORE } else { 0 };
            bonus - emptiness(cpu_free_millis, mem_free_mib)
        }
    }
}

/// A host's place on the ring that breaks ties.
///
/// FNV-1a over the name's bytes, then mixed. Stable over versions and machines: two replicas, a
/// replay and the simulator must break a tie alike.
#[must_use]
pub const fn ring(host: &str) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let bytes = host.as_bytes();
    let mut hash = OFFSET_BASIS;
    let mut at = 0;
    while at < bytes.len() {
        hash ^= bytes[at] as u64;
        hash = hash.wrapping_mul(PRIME);
        at += 1;
    }
    mix(hash)
}

/// A request's place on the same ring, from the number of its id. Stable as [`ring`] is.
///
/// Ids of one millisecond differ in few bits; both halves are mixed so that they land apart.
#[must_use]
pub const fn request_ring(id: u128) -> u64 {
    mix(mix(id as u64) ^ (id >> 64) as u64)
}

/// How far a host stands after a request on the ring, wrapping. Among hosts of equal preference
/// the smallest distance wins, then the smaller name.
///
/// ```
/// use plimsoll_policy::score::distance;
///
/// assert_eq!(distance(10, 10), 0);
/// assert_eq!(distance(10, 12), 2);
/// assert_eq!(distance(10, 9), u64::MAX);
/// ```
#[must_use]
pub const fn distance(request: u64, host: u64) -> u64 {
    host.wrapping_sub(request)
}

/// The output function of splitmix64: each input bit flips about half of the output bits.
const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::format;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_core_a_gib_and_stream_restore_weigh_as_documented() {
        assert_eq!(score(1000, 0, false), 600);
        assert_eq!(score(0, 1024, false), 300);
        assert_eq!(score(0, 0, true), 5000);
    }

    #[test]
    fn the_ring_is_the_same_in_every_version() {
        // Computed apart from this code, from the published definitions of both functions.
        assert_eq!(ring("host-1"), 0x941f_0965_1bcb_c202);
        assert_eq!(ring(""), 0xc381_7c01_6ba4_ff30);
        assert_eq!(request_ring(0), 0xa706_dd2f_4d19_7e6f);
        assert_eq!(request_ring(u128::MAX), 0x6309_143e_67a4_7936);
    }

    /// One host as the picker sees it: place on the ring, free CPU, free memory.
    type Row = (u64, i64, i64);

    fn pick(hosts: &[Row], id: u128) -> usize {
        let request = request_ring(id);
        let best = hosts.iter().enumerate().max_by_key(|(_, (ring, cpu, memory))| {
            (score(*cpu, *memory, false), core::cmp::Reverse(distance(request, *ring)))
        });
        best.map_or(0, |(at, _)| at)
    }

    #[test]
    fn ties_go_to_many_hosts() {
        let hosts: Vec<Row> =
            (0..100).map(|at| (ring(&format!("host-{at}")), 16_000, 65_536)).collect();
        let picked: BTreeSet<_> = (0..10_000).map(|id| pick(&hosts, id)).collect();
        assert!(picked.len() > 95, "{} of 100 hosts", picked.len());
    }

    #[test]
    fn a_burst_between_two_heartbeats_spreads_when_pending_counts() {
        // A hundred hosts under uneven load; fifty creates arrive within one heartbeat.
        let mut hosts: Vec<Row> = (0..100)
            .map(|at| {
                let ring = ring(&format!("host-{at}"));
                let noise = mix(at);
                (ring, 4000 + (noise % 4000) as i64, 20_000 + (noise >> 32) as i64 % 8000)
            })
            .collect();
        let unaware: BTreeSet<_> = (0..50).map(|id| pick(&hosts, id)).collect();
        assert_eq!(unaware.len(), 1);
        let mut aware = BTreeSet::new();
        for id in 0..50 {
            let at = pick(&hosts, id);
            aware.insert(at);
            hosts[at].1 -= 1000;
            hosts[at].2 -= 1024;
        }
        assert!(aware.len() > 20, "{} hosts", aware.len());
    }

    proptest! {
        #[test]
        fn the_score_is_the_exact_sum_floored_once(
            cpu in -1_000_000_000_i64..1_000_000_000,
            memory in -100_000_000_000_i64..100_000_000_000,
        ) {
            let exact = 600 * i128::from(cpu) * 1024 + 300 * i128::from(memory) * 1000;
            prop_assert_eq!(i128::from(score(cpu, memory, false)), exact.div_euclid(1_024_000));
        }

        #[test]
        fn more_free_never_scores_less(
            cpu: i64, memory: i64, more_cpu: u32, more_memory: u32, stream: bool,
        ) {
            let emptier =
                (cpu.saturating_add(more_cpu.into()), memory.saturating_add(more_memory.into()));
            let spread = |cpu, memory| preference(Placement::Spread, cpu, memory, stream);
            let pack = |cpu, memory| preference(Placement::Pack, cpu, memory, stream);
            prop_assert!(spread(emptier.0, emptier.1) >= spread(cpu, memory));
            prop_assert!(pack(emptier.0, emptier.1) <= pack(cpu, memory));
            prop_assert!(pack(cpu, memory) <= preference(Placement::Pack, cpu, memory, true));
        }

        #[test]
        fn nobody_is_further_than_once_around(request: u64, host: u64) {
            prop_assert_eq!(request.wrapping_add(distance(request, host)), host);
        }
    }
}
