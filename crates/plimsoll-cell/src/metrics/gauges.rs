//! Gauges of one scrape.

use std::sync::atomic::AtomicU64;

use plimsoll_engine::{Gauges, HostGauge, PoolView};
use plimsoll_types::PolicyMode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Labels, one};

type Whole<const N: usize> = Family<Labels<N>, Gauge>;
type Real<const N: usize> = Family<Labels<N>, Gauge<f64, AtomicU64>>;

/// A registry with what the engine says now.
///
/// What is unknown is left out rather than shown as zero: the age of a host that never reported,
/// what it admits when its gate is shut, a ratio without a measurement. A pool without a slot limit
/// shows it as infinite.
pub(super) fn registry(gauges: &Gauges) -> Registry {
    let mut registry = Registry::with_prefix("plimsoll");
    hosts(&mut registry, &gauges.hosts);
    pools(&mut registry, &gauges.pools);
    let counts = gauges.counts;
    let sandboxes = whole(&mut registry, "sandboxes", "Sandboxes, by whether they wait");
    let state = |state| one("state", state);
    sandboxes.get_or_create(&state("live")).set(signed(counts.sandboxes_live));
    sandboxes.get_or_create(&state("queued")).set(signed(counts.sandboxes_queued));
    let parked = Gauge::<i64>::default();
    parked.set(signed(counts.parked));
    registry.register("requests_parked", "Requests that wait for fresh answers of hosts", parked);
    let epoch = Gauge::<i64>::default();
    epoch.set(signed(counts.epoch));
    registry.register("epoch", "Epoch of this cell's lease", epoch);
    registry
}

fn hosts(registry: &mut Registry, hosts: &[HostGauge]) {
    let reserved = whole(
        registry,
        "reserved_mib",
        "Charges of admissions that no measurement has seen yet; zero on an idle fleet",
    );
    let reservations = whole(registry, "reservations", "Reservations, by host and state");
    let admittable = whole(registry, "host_admittable_mib", "Memory that a host still accepts");
    let pressure = real(registry, "host_pressure", "Memory pressure as a share of time stalled");
    let unexpected =
        whole(registry, "host_unexpected_guests", "Guests that a host has and should not have");
    let ages = Real::<1>::default();
    registry.register_with_unit(
        "host_heartbeat_age",
        "Age of a host's last report by the cell's clock",
        Unit::Seconds,
        ages.clone(),
    );
    for host in hosts {
        let name = one("host", host.host.as_str());
        reserved.get_or_create(&name).set(signed(host.reserved_mib.get()));
        unexpected.get_or_create(&name).set(signed(host.unexpected));
        for (state, count) in [("reserved", host.reserved), ("committed", host.committed)] {
            let labels = [("host", host.host.to_string()), ("state", state.to_owned())];
            reservations.get_or_create(&labels).set(signed(count));
        }
        if let Some(age) = host.age {
            ages.get_or_create(&name).set(age.get() as f64 / 1e3);
        }
        if let Some(mib) = host.admittable_mib {
            admittable.get_or_create(&name).set(mib);
        }
        if let Some(share) = host.pressure_bp {
            pressure.get_or_create(&name).set(f64::from(share) / 1e4);
        }
    }
}

fn pools(registry: &mut Registry, pools: &[PoolView]) {
    let slots = real(registry, "pool_slots", "Slots of a pool, and what waits for one");
    let overcommitted = whole(registry, "pool_overcommitted", "Slots held beyond a pool's limit");
    let ratio = real(
        registry,
        "resident_committed_ratio",
        "Measured memory over configured memory of what is measured",
    );
    let modes = whole(registry, "policy_mode", "1 for the mode that a pool is in");
    let ages = Real::<1>::default();
    registry.register_with_unit(
        "policy_age",
        "Age of a pool's policy snapshot",
        Unit::Seconds,
        ages.clone(),
    );
    let hosts = whole(registry, "pool_hosts", "Hosts of a pool, and those that take something");
    for pool in pools {
        let name = pool.row.name.to_string();
        let by = |label, value: &str| [("pool", name.clone()), (label, value.to_owned())];
        let limit = pool.row.settings.limit.map_or(f64::INFINITY, |limit| limit as f64);
        for (state, value) in [
            ("held", pool.held as f64),
            ("released", pool.released as f64),
            ("waiting_resume", pool.waiting_resume as f64),
            ("waiting_create", pool.waiting_create as f64),
            ("limit", limit),
        ] {
            slots.get_or_create(&by("state", state)).set(value);
        }
        if let Some(learned) = pool.learned {
            slots.get_or_create(&by("state", "learned")).set(learned as f64);
        }
        let own = one("pool", &name);
        overcommitted.get_or_create(&own).set(signed(pool.overcommitted));
        if let Some(share) = pool.resident_committed {
            ratio.get_or_create(&own).set(share.get() as f64 / 1e4);
        }
        let (_, held_mode, age) = &pool.policy;
        for mode in PolicyMode::ALL {
            modes.get_or_create(&by("mode", mode.as_str())).set(i64::from(mode == held_mode));
        }
        // A local policy does not age.
        ages.get_or_create(&own).set(age.map_or(0.0, |age| age.get() as f64 / 1e3));
        hosts.get_or_create(&by("state", "all")).set(signed(pool.hosts));
        hosts.get_or_create(&by("state", "ready")).set(signed(pool.ready));
    }
}

fn whole<const N: usize>(registry: &mut Registry, name: &str, help: &str) -> Whole<N> {
    let family = Whole::<N>::default();
    registry.register(name, help, family.clone());
    family
}

fn real<const N: usize>(registry: &mut Registry, name: &str, help: &str) -> Real<N> {
    let family = Real::<N>::default();
    registry.register(name, help, family.clone());
    family
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
