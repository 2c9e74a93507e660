use std::sync::atomic::{AtomicI64, Ordering};

use plimsoll_types::{ReserveRule, TemplateName, TenantId, Vcpus};

use super::*;

fn spec(number: u128) -> GuestSpec {
    GuestSpec {
        id: SandboxId(number),
        attempt: 1,
        tenant: TenantId::new("t").unwrap(),
        template: TemplateName::new("x").unwrap(),
        driver: Driver::Simulated,
        memory_mib: Mib(1000),
        overhead_mib: Mib(10),
        vcpus: Vcpus(2),
        stateful: false,
        preemptible: true,
        priority: 0,
        command: Vec::new(),
        env: BTreeMap::new(),
        rootfs: None,
        baked: false,
        fork_of: None,
        counted: BTreeMap::new(),
        reserve: ReserveRule::default(),
        settle_seconds: 3,
        decay_seconds: 120,
    }
}

/// A driver and the hand of its clock.
fn driver(config: SimulatedConfig) -> (SimulatedDriver, Arc<AtomicI64>) {
    let hand = Arc::new(AtomicI64::new(1_000_000));
    let own = Arc::clone(&hand);
    let clock: Clock = Arc::new(move || own.load(Ordering::SeqCst));
    (SimulatedDriver::with_clock(config, clock).unwrap(), hand)
}

async fn resident_mib(driver: &SimulatedDriver, name: &GuestName) -> u64 {
    driver.usage(name).await.unwrap().resident.unwrap().bytes >> 20
}

#[tokio::test(start_paused = true)]
async fn memory_rises_with_time_run_and_leaves_with_a_checkpoint() {
    let (driver, hand) = driver(SimulatedConfig::default());
    let spec = spec(7);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    let share = 3300 * (5000 + mix(7, 1) % 10_001) / 10_000;
    let peak = 1000 * share / 10_000;
    let at_first = resident_mib(&driver, &name).await;
    assert!(at_first.abs_diff(peak / 10 + 10) <= 1, "{at_first} of {peak}");
    hand.fetch_add(60_000, Ordering::SeqCst);
    assert!(resident_mib(&driver, &name).await.abs_diff(peak * 55 / 100 + 10) <= 1);
    hand.fetch_add(600_000, Ordering::SeqCst);
    assert!(resident_mib(&driver, &name).await.abs_diff(peak + 10) <= 1);
    let cpu = async || driver.usage(&name).await.unwrap().cpu_millis_total.unwrap();
    assert_eq!(cpu().await, 660_000 * 2 / 8);

    driver.pause(&name, PauseKind::Checkpoint).await.unwrap();
    hand.fetch_add(1_000_000, Ordering::SeqCst);
    assert_eq!(resident_mib(&driver, &name).await, 0);
    assert_eq!(cpu().await, 660_000 * 2 / 8);
    driver.resume(&name).await.unwrap();
    assert!(resident_mib(&driver, &name).await.abs_diff(peak + 10) <= 1);
    driver.pause(&name, PauseKind::Keep).await.unwrap();
    assert!(resident_mib(&driver, &name).await > 10);
    driver.end(&name).await.unwrap();
    driver.end(&name).await.unwrap();
    assert!(matches!(driver.usage(&name).await, Err(LookError::NotFound(_))));
}

#[tokio::test(start_paused = true)]
async fn a_share_of_starts_fails_the_same_ones_each_time() {
    let config =
        SimulatedConfig { start_failures: BasisPoints(2000), ..SimulatedConfig::default() };
    let mut runs = Vec::new();
    for _ in 0..2 {
        let (driver, _) = driver(config.clone());
        let mut failed = Vec::new();
        for number in 0..1000 {
            if driver.start(&spec(number)).await.is_err() {
                failed.push(number);
            }
        }
        assert_eq!(driver.adopt().await.unwrap().guests.len(), 1000 - failed.len());
        runs.push(failed);
    }
    assert_eq!(runs[0], runs[1]);
    assert!((150..250).contains(&runs[0].len()), "{}", runs[0].len());
}

#[tokio::test(start_paused = true)]
async fn a_sleeper_exits_and_an_exec_needs_a_running_guest() {
    let (driver, hand) = driver(SimulatedConfig::default());
    let mut spec = spec(9);
    spec.command = vec!["sleep".to_owned(), "5".to_owned()];
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    let exec = |word: &str| ExecRequest {
        command: vec![word.to_owned()],
        timeout: Duration::from_secs(1),
    };
    assert_eq!(driver.exec(&name, exec("true")).await.unwrap().stdout, "true\n");
    assert_eq!(driver.exec(&name, exec("false")).await.unwrap().exit_code, 1);
    hand.fetch_add(7_000, Ordering::SeqCst);
    let state = driver.status(&name).await.unwrap();
    let exit = state.exit.unwrap();
    assert_eq!((state.status, exit.code), (GuestStatus::Exited, Some(0)));
    assert_eq!((exit.at_unix_millis, exit.cpu_millis_total), (1_005_000, 5_000 * 2 / 8));
    assert!(matches!(driver.exec(&name, exec("true")).await, Err(ExecError::State { .. })));
    assert!(matches!(driver.resume(&name).await, Err(ChangeError::State { .. })));
    assert!(matches!(driver.start(&spec).await, Err(StartError::Used { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_journal_brings_guests_back_and_drops_a_line_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("simulated.jsonl");
    let config = SimulatedConfig { journal: Some(path.clone()), ..SimulatedConfig::default() };
    let (first, _) = driver(config.clone());
    for number in 1..=4 {
        first.start(&spec(number)).await.unwrap();
    }
    let name = |number| GuestName { id: SandboxId(number), attempt: 1 };
    first.pause(&name(2), PauseKind::Checkpoint).await.unwrap();
    first.stop(&name(3)).await.unwrap();
    first.end(&name(4)).await.unwrap();
    drop(first);
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut file, b"{\"name\":\"sbx_").unwrap();

    let (second, _) = driver(config.clone());
    let found = second.adopt().await.unwrap();
    let states: Vec<_> =
        found.guests.iter().map(|guest| (guest.name, guest.state.status)).collect();
    assert_eq!(
        states,
        [
            (name(1), GuestStatus::Running),
            (name(2), GuestStatus::Paused),
            (name(3), GuestStatus::Exited)
        ]
    );
    assert_eq!(*found.guests[0].spec, spec(1));
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
    std::fs::write(&path, "not json\n{}\n").unwrap();
    assert!(SimulatedDriver::new(config).is_err(), "damage in the middle is no cut");
}
