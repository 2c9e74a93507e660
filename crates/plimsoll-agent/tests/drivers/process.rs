//! The process driver.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_agent::driver::{
    ChangeError, EXEC_OUTPUT_BYTES_MAX, ExecError, GuestDriver, GuestName, Guests, LookError,
    ProcessConfig, ProcessDriver, StartError,
};
use plimsoll_agent::probe::{Hierarchies, MemoryMethod};
use plimsoll_types::{Driver, GuestStatus, PauseKind};

use crate::host::{Host, LONG, can, count, is_root, run, shell, spec, wait_for};

/// Counts up in a file, from a variable in memory.
const COUNTER: &str = "n=0; while :; do n=$((n+1)); echo $n > n.new; mv n.new n; sleep 0.01; done";

fn driver(guests: &Arc<Guests>) -> ProcessDriver {
    ProcessDriver::new(Arc::clone(guests), ProcessConfig::default())
}

#[tokio::test]
async fn a_guest_runs_is_measured_and_leaves_nothing() {
    let host = Host::new();
    let guests = host.guests();
    let driver = driver(&guests);
    driver.available().await.unwrap();
    let spec = spec(Driver::Process, 1, &["sh", "-c", "echo out; echo err >&2; sleep 1000"]);
    let name = GuestName::of(&spec);
    let started = driver.start(&spec).await.unwrap();
    assert_eq!(
        driver.start(&spec).await.unwrap().started_at_unix_millis,
        started.started_at_unix_millis
    );
    let state = driver.status(&name).await.unwrap();
    assert_eq!((state.status, state.exit), (GuestStatus::Running, None));

    let dir = guests.dir(&name);
    wait_for("the output", async || dir.log_tail(100) == b"out\nerr\n").await;
    let output = run(&driver, &name, "echo \"$GREETING\"; id -u; pwd; echo oops >&2; exit 3").await;
    assert_eq!(output.exit_code, 3);
    assert_eq!(output.stderr, "oops\n");
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert_eq!((lines[0], lines[2]), ("it's a secret", dir.work_path().to_str().unwrap()));
    if is_root() {
        assert_ne!(lines[1], "0");
        assert_eq!(lines[1], std::fs::metadata(dir.work_path()).unwrap().uid().to_string());
    }

    let usage = driver.usage(&name).await.unwrap();
    let resident = usage.resident.unwrap();
    assert!(resident.bytes > 10_000 && resident.bytes < 64 << 20, "{resident:?}");
    assert!(usage.cpu_millis_total.unwrap() < 60_000);
    assert_eq!(usage.egress_bytes_total, None, "unknown, and not zero");

    let secret = |path: std::path::PathBuf| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(secret(dir.path().join("spec.json")) & 0o077, 0);
    assert!(!host.processes().iter().any(|line| line.contains("secret")));

    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
    driver.end(&name).await.unwrap();
    assert!(matches!(driver.status(&name).await, Err(LookError::NotFound(_))));
    assert!(matches!(driver.exec(&name, shell("", LONG)).await, Err(ExecError::NotFound(_))));
}

#[tokio::test]
async fn a_guest_that_exits_takes_its_children_along() {
    let host = Host::new();
    let guests = host.guests();
    let driver = driver(&guests);
    let script = "(setsid sleep 1000 &) ; sleep 1000 & echo bye; exit 7";
    let spec = spec(Driver::Process, 2, &["sh", "-c", script]);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    wait_for("the exit", async || {
        driver.status(&name).await.unwrap().status == GuestStatus::Exited
    })
    .await;
    let exit = driver.status(&name).await.unwrap().exit.unwrap();
    assert_eq!((exit.code, exit.out_of_memory), (Some(7), false));
    wait_for("the end of all processes", async || host.processes().is_empty()).await;
    assert_eq!(guests.dir(&name).log_tail(100), b"bye\n");
    assert_eq!(driver.usage(&name).await.unwrap().resident.unwrap().bytes, 0);
    assert!(matches!(driver.start(&spec).await, Err(StartError::Used { .. })));
    assert!(matches!(driver.resume(&name).await, Err(ChangeError::State { .. })));
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn a_paused_guest_stands_still_and_goes_on() {
    for host in [Host::new(), Host::without_control_groups()] {
        let guests = host.guests();
        let driver = driver(&guests);
        let spec = spec(Driver::Process, 3, &["sh", "-c", COUNTER]);
        let name = GuestName::of(&spec);
        driver.start(&spec).await.unwrap();
        let file = guests.dir(&name).work_path().join("n");
        let mut clock = spec.clone();
        clock.id = plimsoll_types::SandboxId(30);
        let clock_name = GuestName::of(&clock);
        driver.start(&clock).await.unwrap();
        let clock_file = guests.dir(&clock_name).work_path().join("n");
        wait_for("the count", async || count(&file) > 3).await;
        driver.pause(&name, PauseKind::Keep).await.unwrap();
        driver.pause(&name, PauseKind::Driver).await.unwrap();
        let state = driver.status(&name).await.unwrap();
        assert_eq!((state.status, state.paused), (GuestStatus::Paused, Some(PauseKind::Keep)));
        let before = count(&file);
        assert!(matches!(driver.exec(&name, shell("", LONG)).await, Err(ExecError::State { .. })));
        assert!(driver.usage(&name).await.unwrap().resident.unwrap().bytes > 0);
        // Another guest's count is the clock: one that still ran would have counted, too.
        let ticks = count(&clock_file);
        wait_for("the clock", async || count(&clock_file) > ticks + 10).await;
        assert_eq!(count(&file), before);
        let unsupported = driver.pause(&name, PauseKind::Checkpoint).await;
        assert!(matches!(unsupported, Err(ChangeError::Unsupported { .. })));
        driver.resume(&name).await.unwrap();
        driver.resume(&name).await.unwrap();
        wait_for("the count to go on", async || count(&file) > before).await;
        // A frozen guest can be ended.
        driver.pause(&name, PauseKind::Keep).await.unwrap();
        driver.end(&name).await.unwrap();
        driver.end(&clock_name).await.unwrap();
        host.assert_gone(&name).await;
    }
}

#[tokio::test]
async fn without_control_groups_a_guest_is_found_by_descent() {
    let host = Host::without_control_groups();
    let guests = host.guests();
    let driver = ProcessDriver::new(Arc::clone(&guests), ProcessConfig::AgentsUser);
    // Leaves its session and its parent.
    let script = "(setsid sh -c 'sleep 1000 & wait' &) ; sleep 1000";
    let spec = spec(Driver::Process, 4, &["sh", "-c", script]);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    wait_for("its children", async || host.processes().len() == 5).await;
    let usage = driver.usage(&name).await.unwrap();
    assert!(usage.resident.unwrap().method >= MemoryMethod::Pss);
    let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    assert_eq!(run(&driver, &name, busy).await.exit_code, 0);
    // Guests measured in one round share one scan of the processes, which may be a little older.
    let mut used = 0;
    wait_for("the cpu used", async || {
        used = driver.usage(&name).await.unwrap().cpu_millis_total.unwrap();
        used > 0
    })
    .await;
    assert!(driver.usage(&name).await.unwrap().cpu_millis_total.unwrap() >= used);
    let last = driver.end(&name).await.unwrap().unwrap();
    assert!(last.cpu_millis_total >= used, "{last:?}");
    assert_eq!(last.egress_bytes_total, None, "unknown, and not zero");
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn what_a_guest_used_that_nobody_measured_is_told_at_its_end() {
    let host = Host::new();
    let driver = driver(&host.guests());
    // Busy in a child that it waits for, until the mark appears; nothing is sampled meanwhile.
    let script = "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; echo done; sleep 1000";
    let guests = host.guests();
    for (id, stop) in [(31, false), (32, true)] {
        let spec = spec(Driver::Process, id, &["sh", "-c", script]);
        let name = GuestName::of(&spec);
        driver.start(&spec).await.unwrap();
        let dir = guests.dir(&name);
        wait_for("the end of its work", async || dir.log_tail(100) == b"done\n").await;
        if stop {
            driver.stop(&name).await.unwrap();
        }
        let last = driver.end(&name).await.unwrap().unwrap();
        assert!((10..60_000).contains(&last.cpu_millis_total), "{last:?}");
        assert_eq!(driver.end(&name).await.unwrap(), None, "nothing is told twice");
        host.assert_gone(&name).await;
    }
}

#[tokio::test]
async fn a_stopped_guest_keeps_its_disk_for_the_next_attempt() {
    let host = Host::new();
    let guests = host.guests();
    let driver = driver(&guests);
    let mut spec = spec(Driver::Process, 5, &[]);
    let first = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    run(&driver, &first, "echo kept > file").await;
    driver.stop(&first).await.unwrap();
    driver.stop(&first).await.unwrap();
    let exit = driver.status(&first).await.unwrap().exit.unwrap();
    assert_eq!(exit.code, Some(128 + 15));
    assert!(host.processes().is_empty());
    // An attempt that fails gives the disk back.
    spec.attempt = 2;
    let mut failing = spec.clone();
    failing.command = vec!["/no/such/program".to_owned()];
    driver.start(&failing).await.unwrap_err();
    let second = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    assert_eq!(run(&driver, &second, "cat file; echo more >> file").await.stdout, "kept\n");
    driver.end(&first).await.unwrap();
    assert_eq!(run(&driver, &second, "cat file").await.stdout, "kept\nmore\n");
    driver.end(&second).await.unwrap();
    host.assert_gone(&second).await;
}

#[tokio::test]
async fn a_restart_that_fails_leaves_the_guest_stopped_with_its_disk() {
    let host = Host::new();
    let guests = host.guests();
    let driver = driver(&guests);
    let spec = spec(Driver::Process, 8, &[]);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    run(&driver, &name, "echo kept > file").await;
    driver.restart(&spec).await.unwrap();
    driver.stop(&name).await.unwrap();
    let mut failing = spec.clone();
    failing.command = vec!["/no/such/program".to_owned()];
    driver.restart(&failing).await.unwrap_err();
    let exit = driver.status(&name).await.unwrap().exit.unwrap();
    assert_eq!(exit.code, Some(128 + 15));
    driver.restart(&spec).await.unwrap();
    assert_eq!(run(&driver, &name, "cat file").await.stdout, "kept\n");
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn a_guest_that_will_not_go_is_made_to() {
    let host = Host::new();
    let guests = host.guests();
    let driver = driver(&guests);
    let spec = spec(
        Driver::Process,
        6,
        &["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"],
    );
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    wait_for("the trap", async || guests.dir(&name).log_tail(10) == b"up\n").await;
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn a_start_that_fails_leaves_nothing_and_says_why() {
    let host = Host::new();
    let guests = host.guests();
    let driver = driver(&guests);
    let missing = spec(Driver::Process, 7, &["/no/such/program"]);
    let name = GuestName::of(&missing);
    let error = driver.start(&missing).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
    assert!(error.is_the_guests(), "{error:?}");
    host.assert_gone(&name).await;
    for (field, change) in [
        (
            "rootfs",
            (|spec| spec.rootfs = Some("/".to_owned())) as fn(&mut plimsoll_types::GuestSpec),
        ),
        ("baked", |spec| spec.baked = true),
        ("fork_of", |spec| spec.fork_of = Some(spec.id)),
    ] {
        let mut wrong = spec(Driver::Process, 7, &[]);
        change(&mut wrong);
        match driver.start(&wrong).await {
            Err(StartError::Invalid { field: named, .. }) => assert_eq!(named, field),
            other => panic!("{other:?}"),
        }
    }
    // The same attempt may be tried again after a failure.
    driver.start(&spec(Driver::Process, 7, &[])).await.unwrap();
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn an_exec_is_bounded_in_time_and_output() {
    let host = Host::new();
    let guests = host.guests();
    let driver = Arc::new(driver(&guests));
    let spec = spec(Driver::Process, 8, &[]);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();

    let output = driver
        .exec(&name, shell("echo partial; sleep 1000 & sleep 1000", Duration::from_millis(300)))
        .await
        .unwrap();
    assert_eq!((output.exit_code, output.timed_out), (124, true));
    assert_eq!(output.stdout, "partial\n");
    let sleeps = || host.processes().iter().filter(|line| line.contains("sleep 1000")).count();
    wait_for("the end of the command", async || sleeps() == 0).await;

    let bytes = EXEC_OUTPUT_BYTES_MAX + 100_000;
    let output =
        run(&*driver, &name, &format!("head -c {bytes} /dev/zero | tr '\\0' x; echo e >&2")).await;
    assert!(output.stdout_truncated && !output.stderr_truncated);
    assert_eq!((output.stdout.len(), output.stderr.as_str()), (EXEC_OUTPUT_BYTES_MAX, "e\n"));

    // What a command leaves running does not hold its answer up.
    let before = Instant::now();
    assert_eq!(run(&*driver, &name, "sleep 1000 & echo done").await.stdout, "done\n");
    assert!(before.elapsed() < LONG);
    assert_eq!(run(&*driver, &name, "kill -9 $$").await.exit_code, 128 + 9);
    let missing = plimsoll_agent::driver::ExecRequest {
        command: vec!["no-such-program".to_owned()],
        timeout: LONG,
    };
    let output = driver.exec(&name, missing).await.unwrap();
    assert_eq!(output.exit_code, 127);
    assert!(output.stderr.contains("no-such-program"), "{output:?}");

    // A caller that goes away takes its command along.
    let (own, own_name) = (Arc::clone(&driver), name);
    let call =
        tokio::spawn(
            async move { own.exec(&own_name, shell("exec sleep 2000", LONG)).await.map(drop) },
        );
    let runs = || host.processes().iter().any(|line| line.contains("sleep 2000"));
    wait_for("the command", async || runs()).await;
    call.abort();
    wait_for("its end", async || !runs()).await;

    for (command, timeout) in
        [(vec![], LONG), (vec!["a\0b"], LONG), (vec![""], LONG), (vec!["true"], Duration::ZERO)]
    {
        let command = command.into_iter().map(str::to_owned).collect();
        let request = plimsoll_agent::driver::ExecRequest { command, timeout };
        assert!(matches!(driver.exec(&name, request).await, Err(ExecError::Invalid { .. })));
    }
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn a_guest_beyond_its_memory_is_ended_by_the_kernel_and_says_so() {
    let host = Host::new();
    let guests = host.guests();
    let driver = driver(&guests);
    let probe = spec(Driver::Process, 9, &["sleep", "1000"]);
    let started = driver.start(&probe).await.unwrap();
    driver.end(&GuestName::of(&probe)).await.unwrap();
    let limited = !started.notes.iter().any(|note| note.contains("memory"));
    if !can(limited && is_root(), "needs root and a memory controller") {
        return;
    }
    let mut spec = spec(Driver::Process, 10, &["sh", "-c", "exec tail /dev/zero"]);
    spec.memory_mib = plimsoll_types::Mib(32);
    spec.overhead_mib = plimsoll_types::Mib(0);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    wait_for("the kernel", async || {
        driver.status(&name).await.unwrap().status == GuestStatus::Exited
    })
    .await;
    let exit = driver.status(&name).await.unwrap().exit.unwrap();
    assert!(exit.out_of_memory, "{exit:?}");
    assert_eq!(exit.code, Some(128 + 9));
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn guests_have_users_of_their_own() {
    let host = Host::new();
    let guests = host.guests();
    if !can(is_root(), "needs root") {
        return;
    }
    let driver = driver(&guests);
    let mut users = std::collections::BTreeSet::new();
    for number in 11..14 {
        let spec = spec(Driver::Process, number, &[]);
        driver.start(&spec).await.unwrap();
        users.insert(run(&driver, &GuestName::of(&spec), "id -u").await.stdout);
    }
    assert_eq!(users.len(), 3);
    let (one, other) = (11, 12);
    let name = |number| GuestName { id: plimsoll_types::SandboxId(number), attempt: 1 };
    let foreign = guests.dir(&name(other));
    let peep = format!(
        "cat {0}/spec.json {1}/x; ls {1} {0}; echo end",
        foreign.path().display(),
        foreign.work_path().display()
    );
    let output = run(&driver, &name(one), &peep).await;
    assert_eq!(output.stdout, "end\n");
    // Another agent on the same folder does not give a living guest's user away.
    let second = ProcessDriver::new(host.guests(), ProcessConfig::default());
    let spec = spec(Driver::Process, 14, &[]);
    second.start(&spec).await.unwrap();
    assert!(users.insert(run(&second, &name(14), "id -u").await.stdout));
    for number in 11..15 {
        driver.end(&name(number)).await.unwrap();
    }
    host.assert_gone(&name(11)).await;
}

/// An agent that is killed without warning: this test binary, called again.
#[tokio::test]
#[ignore = "a process for other tests"]
async fn agent_to_be_killed() {
    let Some(data) = std::env::var_os("PLIMSOLL_TEST_DATA") else { return };
    let guests = Guests::open(data.as_ref(), crate::host::shim(), true).unwrap();
    let driver = driver(&guests);
    driver.start(&spec(Driver::Process, 20, &["sh", "-c", COUNTER])).await.unwrap();
    driver.start(&spec(Driver::Process, 21, &["sh", "-c", COUNTER])).await.unwrap();
    driver.pause(&GuestName::of(&spec(Driver::Process, 21, &[])), PauseKind::Keep).await.unwrap();
    let name = GuestName::of(&spec(Driver::Process, 20, &[]));
    std::fs::write(guests.data().join("ready"), "").unwrap();
    let _ = driver.exec(&name, shell("exec sleep 3000", LONG * 10)).await;
}

#[tokio::test]
async fn guests_outlive_a_killed_agent_and_are_found_again() {
    let host = Host::new();
    let data = host.data();
    let mut agent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process::agent_to_be_killed", "--ignored", "--nocapture"])
        .env("PLIMSOLL_TEST_DATA", &data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the agent", async || data.join("ready").exists()).await;
    let execs = || host.processes().iter().any(|line| line.contains("sleep 3000"));
    wait_for("its exec", async || execs()).await;
    agent.kill().unwrap();
    agent.wait().unwrap();

    let guests = host.guests();
    let driver = driver(&guests);
    let name = |number| GuestName { id: plimsoll_types::SandboxId(number), attempt: 1 };
    let found = driver.adopt().await.unwrap();
    let states: Vec<_> = found
        .guests
        .iter()
        .map(|guest| (guest.name, guest.state.status, guest.state.paused))
        .collect();
    assert_eq!(
        states,
        [
            (name(20), GuestStatus::Running, None),
            (name(21), GuestStatus::Paused, Some(PauseKind::Keep)),
        ]
    );
    assert_eq!(found.guests[0].spec.env["GREETING"], "it's a secret");
    assert!(found.broken.is_empty(), "{:?}", found.broken);
    let file = guests.dir(&name(20)).work_path().join("n");
    let before = count(&file);
    wait_for("the count to go on", async || count(&file) > before).await;
    // The exec's caller died with the agent.
    wait_for("the end of the exec", async || !execs()).await;
    assert_eq!(run(&driver, &name(20), "echo again").await.stdout, "again\n");
    driver.resume(&name(21)).await.unwrap();
    for number in [20, 21] {
        driver.end(&name(number)).await.unwrap();
    }
    std::fs::remove_file(data.join("ready")).unwrap();
    host.assert_gone(&name(20)).await;
}

#[tokio::test]
async fn a_guest_without_its_shim_is_still_the_guest_and_a_recycled_pid_is_not() {
    let host = Host::new();
    let guests = host.guests();
    let driver = driver(&guests);
    let spec = spec(Driver::Process, 22, &["sh", "-c", COUNTER]);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    let dir = guests.dir(&name);
    let state_file = dir.path().join("state.json");
    let mut state: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&state_file).unwrap()).unwrap();
    let shim = i32::try_from(state["shim"]["pid"].as_i64().unwrap()).unwrap();
    let shim = rustix::process::Pid::from_raw(shim).unwrap();
    rustix::process::kill_process(shim, rustix::process::Signal::KILL).unwrap();

    wait_for("the shim's end", async || {
        let exec = driver.exec(&name, shell("true", LONG)).await;
        matches!(exec, Err(ExecError::Fault(_)))
    })
    .await;
    let found = driver.adopt().await.unwrap();
    assert_eq!(found.guests[0].state.status, GuestStatus::Running);
    let file = dir.work_path().join("n");
    driver.pause(&name, PauseKind::Keep).await.unwrap();
    driver.resume(&name).await.unwrap();
    let before = count(&file);
    wait_for("the count to go on", async || count(&file) > before).await;

    // The same pid, started at another time: that is somebody else.
    state["main"]["start_ticks"] = serde_json::json!(1);
    std::fs::write(&state_file, state.to_string()).unwrap();
    let seen = driver.status(&name).await.unwrap();
    assert_eq!((seen.status, seen.exit.unwrap().code), (GuestStatus::Exited, None));
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn a_start_that_was_cut_short_before_anything_ran_is_no_guest_that_ended() {
    let host = Host::new();
    let guests = host.guests();
    let driver = driver(&guests);
    let spec = spec(Driver::Process, 24, &[]);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    // The folder as it is when an agent dies between making it and starting the shim.
    let dir = guests.dir(&name);
    let kept = ["spec.json", "plan.json"].map(|file| dir.path().join(file));
    let kept = kept.map(|file| (std::fs::read(&file).unwrap(), file));
    driver.end(&name).await.unwrap();
    std::fs::create_dir(dir.path()).unwrap();
    for (text, file) in kept {
        std::fs::write(file, text).unwrap();
    }
    let found = driver.adopt().await.unwrap();
    assert!(found.guests.is_empty() && found.broken.is_empty());
    // Again, since the first time must have written nothing down.
    assert!(driver.adopt().await.unwrap().guests.is_empty());
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn what_belongs_to_no_guest_is_cleared_or_named() {
    let host = Host::new();
    let guests = host.guests();
    let driver = driver(&guests);
    let spec = spec(Driver::Process, 23, &[]);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    let folder = host.data().join("guests");
    let broken = "sbx_0000000000000000000000000z.1";
    for other in ["elsewhere", ".gone-x", ".new-x", broken] {
        std::fs::create_dir(folder.join(other)).unwrap();
    }
    // A guest whose folder went without it.
    let gone = folder.parent().unwrap().join("gone");
    std::fs::rename(guests.dir(&name).path(), &gone).unwrap();
    let found = driver.adopt().await.unwrap();
    assert!(found.guests.is_empty());
    let named: Vec<_> = found.broken.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(named, ["elsewhere", broken]);
    for other in ["elsewhere", broken] {
        std::fs::remove_dir(folder.join(other)).unwrap();
    }
    if is_root() && Hierarchies::detect().is_ok_and(|machine| machine.unified.is_some()) {
        wait_for("the end with its control group", async || host.processes().is_empty()).await;
    }
    std::fs::rename(&gone, guests.dir(&name).path()).unwrap();
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}
