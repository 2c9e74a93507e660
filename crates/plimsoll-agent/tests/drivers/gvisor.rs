//! The gVisor driver: needs root, `runsc` and a static busybox.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_agent::driver::{
    EXEC_OUTPUT_BYTES_MAX, ExecError, ExecRequest, GuestDriver, GuestName, Guests, GvisorConfig,
    GvisorDriver, StartError,
};
use plimsoll_types::{Driver, GuestSpec, GuestStatus, PauseKind, SandboxId};
use rustix::process::{Pid, Signal, kill_process};

use crate::host::{Host, LONG, can, run, shell, spec, wait_for};

/// Counts in a variable of the shell, shown in a file: the variable survives a checkpoint only as
/// part of the process's memory.
const COUNTER: &str =
    "n=0; while :; do n=$((n+1)); echo $n > /n.new; mv /n.new /n; sleep 0.02; done";

fn counter(number: u128) -> GuestSpec {
    spec(Driver::Gvisor, number, &["sh", "-c", COUNTER])
}

/// The driver, or `None` where it cannot work.
async fn driver(guests: &Arc<Guests>) -> Option<GvisorDriver> {
    let driver = GvisorDriver::new(Arc::clone(guests), GvisorConfig::default());
    let tried = driver.available().await;
    let why = tried.as_ref().err().map(ToString::to_string).unwrap_or_default();
    if !can(tried.is_ok(), &why) {
        return None;
    }
    let abilities = tried.unwrap();
    can(abilities.checkpoint, &format!("{abilities:?}")).then_some(driver)
}

async fn counted(driver: &GvisorDriver, name: &GuestName) -> u64 {
    let mut seen = 0;
    wait_for("the count", async || {
        seen = run(driver, name, "cat /n").await.stdout.trim().parse().unwrap_or(0);
        seen > 0
    })
    .await;
    seen
}

/// The count of a guest whose shim may only now take up a pause that its late agent asked for.
async fn counted_through_a_pause(driver: &GvisorDriver, name: &GuestName) -> u64 {
    let mut seen = 0;
    wait_for("the count", async || {
        match driver.exec(name, shell("cat /n", LONG)).await {
            Ok(output) => seen = output.stdout.trim().parse().unwrap_or(0),
            Err(ExecError::State { status: GuestStatus::Paused, .. }) => {
                driver.resume(name).await.unwrap();
            }
            // On its way into or out of a pause.
            Err(ExecError::State { .. } | ExecError::Fault(_)) => {}
            Err(other) => panic!("{other}"),
        }
        seen > 0
    })
    .await;
    seen
}

fn is_written_out(state: &plimsoll_agent::driver::GuestState) -> bool {
    state.status == GuestStatus::Paused && state.paused == Some(PauseKind::Checkpoint)
}

#[tokio::test]
async fn memory_survives_a_checkpoint_and_leaves_the_host_meanwhile() {
    let host = Host::new();
    let guests = host.guests();
    let Some(driver) = driver(&guests).await else { return };
    let spec = counter(100);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    let hello = run(&driver, &name, "echo \"$GREETING\"; id -u; ls /; exit 5").await;
    assert_eq!(hello.exit_code, 5, "{hello:?}");
    assert!(hello.stdout.starts_with("it's a secret\n0\nbin\n"), "{hello:?}");
    let before = counted(&driver, &name).await;
    let usage = driver.usage(&name).await.unwrap();
    let resident = usage.resident.unwrap();
    assert!(resident.bytes > 1 << 20 && resident.bytes < 300 << 20, "{resident:?}");
    assert_eq!(usage.egress_bytes_total, Some(0));
    let used = usage.cpu_millis_total.unwrap();
    assert!(used > 0);

    driver.pause(&name, PauseKind::Driver).await.unwrap();
    driver.pause(&name, PauseKind::Checkpoint).await.unwrap();
    assert!(is_written_out(&driver.status(&name).await.unwrap()));
    assert_eq!(host.processes(), Vec::<String>::new());
    assert!(host.control_groups_of(&name).is_empty());
    let usage = driver.usage(&name).await.unwrap();
    assert_eq!(usage.resident.unwrap().bytes, 0);
    let at_rest = usage.cpu_millis_total.unwrap();
    assert!(at_rest >= used);

    driver.resume(&name).await.unwrap();
    driver.resume(&name).await.unwrap();
    assert!(counted(&driver, &name).await >= before);
    assert!(!guests.dir(&name).path().join("checkpoint").exists(), "running again consumes it");
    assert!(driver.usage(&name).await.unwrap().cpu_millis_total.unwrap() >= at_rest);
    driver.pause(&name, PauseKind::Checkpoint).await.unwrap();
    // Its whole life, the time before the first checkpoint in it once.
    let at_rest = driver.usage(&name).await.unwrap().cpu_millis_total.unwrap();
    let last = driver.end(&name).await.unwrap().unwrap();
    assert_eq!((last.cpu_millis_total, last.egress_bytes_total), (at_rest, Some(0)));
    host.assert_gone(&name).await;
}

/// A stop ends the sandbox whole; a start is its command anew, in a fresh sandbox under the same
/// name: gVisor's disk is memory.
#[tokio::test]
async fn a_stopped_guest_starts_again_under_its_name() {
    let host = Host::new();
    let guests = host.guests();
    let Some(driver) = driver(&guests).await else { return };
    for (number, baked) in [(105, false), (106, true)] {
        let mut spec = counter(number);
        spec.baked = baked;
        let name = GuestName::of(&spec);
        driver.start(&spec).await.unwrap();
        counted(&driver, &name).await;
        run(&driver, &name, "echo gone > /file").await;
        // What runs is left alone.
        driver.restart(&spec).await.unwrap();
        assert_eq!(run(&driver, &name, "cat /file").await.stdout, "gone\n");
        for _ in 0..2 {
            driver.stop(&name).await.unwrap();
            driver.stop(&name).await.unwrap();
            let state = driver.status(&name).await.unwrap();
            assert_eq!(state.status, GuestStatus::Exited, "{state:?}");
            assert_eq!(host.processes(), Vec::<String>::new());
            assert!(host.control_groups_of(&name).is_empty());

            // A start that fails leaves it stopped.
            let mut failing = spec.clone();
            failing.baked = false;
            failing.command = vec!["/no/such/program".to_owned()];
            driver.restart(&failing).await.unwrap_err();
            assert_eq!(driver.status(&name).await.unwrap().status, GuestStatus::Exited);
            assert_eq!(host.processes(), Vec::<String>::new());

            driver.restart(&spec).await.unwrap();
            counted(&driver, &name).await;
            assert_eq!(run(&driver, &name, "cat /file || echo fresh").await.stdout, "fresh\n");
        }
        // It can do all that a guest can.
        driver.pause(&name, PauseKind::Checkpoint).await.unwrap();
        assert!(is_written_out(&driver.status(&name).await.unwrap()));
        driver.resume(&name).await.unwrap();
        counted(&driver, &name).await;
        driver.end(&name).await.unwrap();
        host.assert_gone(&name).await;
    }
}

#[tokio::test]
async fn a_baked_create_runs_its_own_command_and_exits_with_it() {
    let host = Host::new();
    let guests = host.guests();
    let Some(driver) = driver(&guests).await else { return };
    let script = "echo \"hello $GREETING\"; [ \"$1\" = \"it's\" ] || exit 1; while [ ! -e /stop ]; do sleep 0.02; done; exit 9";
    let mut spec = spec(Driver::Gvisor, 110, &["sh", "-c", script, "name", "it's"]);
    spec.baked = true;
    let name = GuestName::of(&spec);
    let started = driver.start(&spec).await.unwrap();
    assert!(!started.notes.iter().any(|note| note.contains("plainly")), "{started:?}");
    let dir = guests.dir(&name);
    wait_for("the output", async || dir.log_tail(100) == b"hello it's a secret\n").await;
    assert_eq!(run(&driver, &name, "echo $GREETING").await.stdout, "it's a secret\n");
    // The guest may be over before the command's answer.
    let _ = driver.exec(&name, shell("touch /stop", LONG)).await;
    wait_for("the exit", async || {
        driver.status(&name).await.unwrap().status == GuestStatus::Exited
    })
    .await;
    assert_eq!(driver.status(&name).await.unwrap().exit.unwrap().code, Some(9));
    let baked: Vec<_> = std::fs::read_dir(host.data().join("baked")).unwrap().flatten().collect();
    assert_eq!(baked.len(), 1, "{baked:?}");

    // Without a command it waits, and may be given any; what no shell can name boots plainly.
    let mut idle = spec.clone();
    (idle.id, idle.command) = (SandboxId(111), Vec::new());
    let mut odd = spec.clone();
    odd.id = SandboxId(112);
    odd.env.insert("not-a-name".to_owned(), String::new());
    for spec in [&idle, &odd] {
        let started = driver.start(spec).await.unwrap();
        let plainly = started.notes.iter().any(|note| note.contains("plainly"));
        assert_eq!(plainly, spec.id == odd.id, "{started:?}");
        assert_eq!(run(&driver, &GuestName::of(spec), "echo up").await.stdout, "up\n");
    }
    for id in [110, 111, 112] {
        driver.end(&GuestName { id: SandboxId(id), attempt: 1 }).await.unwrap();
    }
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn a_fork_goes_on_from_where_its_source_was() {
    let host = Host::new();
    let guests = host.guests();
    let Some(driver) = driver(&guests).await else { return };
    let source = counter(120);
    let name = GuestName::of(&source);
    driver.start(&source).await.unwrap();
    run(&driver, &name, "echo shared > /file").await;
    let before = counted(&driver, &name).await;
    for (number, kind) in
        [(121, None), (122, Some(PauseKind::Keep)), (123, Some(PauseKind::Checkpoint))]
    {
        if let Some(kind) = kind {
            driver.pause(&name, kind).await.unwrap();
        }
        let state = driver.status(&name).await.unwrap();
        let mut fork = counter(number);
        fork.fork_of = Some(source.id);
        let fork_name = GuestName::of(&fork);
        driver.start(&fork).await.unwrap();
        let after = driver.status(&name).await.unwrap();
        assert_eq!((after.status, after.paused), (state.status, state.paused));
        assert!(counted(&driver, &fork_name).await >= before);
        assert_eq!(
            run(&driver, &fork_name, "cat /file; echo own > /file").await.stdout,
            "shared\n"
        );
        driver.resume(&name).await.unwrap();
        assert_eq!(run(&driver, &name, "cat /file").await.stdout, "shared\n");
        driver.end(&fork_name).await.unwrap();
    }
    let mut lost = counter(124);
    lost.fork_of = Some(SandboxId(999));
    match driver.start(&lost).await {
        Err(StartError::Invalid { field: "fork_of", .. }) => {}
        other => panic!("{other:?}"),
    }
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn a_frozen_sandbox_keeps_its_memory() {
    let host = Host::without_control_groups();
    let guests = host.guests();
    let Some(driver) = driver(&guests).await else { return };
    let spec = counter(130);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    let before = counted(&driver, &name).await;
    driver.pause(&name, PauseKind::Keep).await.unwrap();
    driver.pause(&name, PauseKind::Keep).await.unwrap();
    let state = driver.status(&name).await.unwrap();
    assert_eq!((state.status, state.paused), (GuestStatus::Paused, Some(PauseKind::Keep)));
    assert!(driver.usage(&name).await.unwrap().resident.unwrap().bytes > 0);
    // From frozen to written out without running in between.
    driver.pause(&name, PauseKind::Checkpoint).await.unwrap();
    assert!(is_written_out(&driver.status(&name).await.unwrap()));
    driver.resume(&name).await.unwrap();
    assert!(counted(&driver, &name).await >= before);
    driver.pause(&name, PauseKind::Keep).await.unwrap();
    driver.resume(&name).await.unwrap();
    assert_eq!(run(&driver, &name, "echo up").await.stdout, "up\n");

    // The mark of an agent that was killed before it froze its guest.
    std::fs::write(guests.dir(&name).path().join("frozen"), "").unwrap();
    let found = driver.adopt().await.unwrap();
    assert_eq!(found.guests[0].state.status, GuestStatus::Running);
    assert_eq!(driver.status(&name).await.unwrap().status, GuestStatus::Running);
    driver.stop(&name).await.unwrap();
    assert_eq!(driver.status(&name).await.unwrap().status, GuestStatus::Exited);
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn a_restore_that_fails_keeps_the_checkpoint() {
    let host = Host::new();
    let guests = host.guests();
    let Some(driver) = driver(&guests).await else { return };
    let spec = counter(140);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    let before = counted(&driver, &name).await;
    driver.pause(&name, PauseKind::Checkpoint).await.unwrap();
    let image = guests.dir(&name).path().join("checkpoint/checkpoint.img");
    let whole = std::fs::read(&image).unwrap();
    std::fs::write(&image, vec![0; whole.len()]).unwrap();
    let error = driver.resume(&name).await.unwrap_err();
    assert!(error.to_string().contains("runsc restore"), "{error}");
    assert!(is_written_out(&driver.status(&name).await.unwrap()));
    assert_eq!(host.processes(), Vec::<String>::new());
    std::fs::write(&image, &whole).unwrap();
    driver.resume(&name).await.unwrap();
    assert!(counted(&driver, &name).await >= before);
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn an_exec_is_killed_inside_the_sandbox() {
    let host = Host::new();
    let guests = host.guests();
    let Some(driver) = driver(&guests).await else { return };
    let spec = spec(Driver::Gvisor, 150, &[]);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    let output = driver
        .exec(&name, shell("echo partial; exec sleep 1234", Duration::from_secs(2)))
        .await
        .unwrap();
    assert_eq!((output.exit_code, output.stdout.as_str()), (124, "partial\n"));
    assert!(!run(&driver, &name, "ps").await.stdout.contains("1234"));
    assert_eq!(run(&driver, &name, "kill -9 $$").await.exit_code, 128 + 9);
    let missing = ExecRequest { command: vec!["no-such-program".to_owned()], timeout: LONG };
    let output = driver.exec(&name, missing).await.unwrap();
    assert_eq!(output.exit_code, 127, "{output:?}");

    // A command that is still running goes into the checkpoint with the guest, unheard.
    let driver = Arc::new(driver);
    let own = Arc::clone(&driver);
    let call = tokio::spawn(async move {
        own.exec(&name, shell("touch /begun; while :; do sleep 0.05; done", LONG)).await
    });
    wait_for("the command", async || run(&*driver, &name, "test -e /begun").await.exit_code == 0)
        .await;
    // Nor does one that an earlier command left behind keep it from being restored.
    let before = Instant::now();
    assert_eq!(run(&*driver, &name, "sleep 4321 & echo left").await.stdout, "left\n");
    assert!(before.elapsed() < LONG);
    driver.pause(&name, PauseKind::Keep).await.unwrap();
    driver.pause(&name, PauseKind::Checkpoint).await.unwrap();
    let unheard = call.await.unwrap();
    assert!(matches!(unheard, Err(ExecError::Fault(_))), "{unheard:?}");
    driver.resume(&name).await.unwrap();
    let processes = run(&*driver, &name, "ps").await.stdout;
    assert!(processes.contains("/begun") && processes.contains("4321"), "{processes}");
    driver.pause(&name, PauseKind::Checkpoint).await.unwrap();
    driver.resume(&name).await.unwrap();

    let bytes = EXEC_OUTPUT_BYTES_MAX + 100_000;
    let script = format!("head -c {bytes} /dev/zero | tr '\\0' x; echo e >&2; exit 3");
    let output = run(&*driver, &name, &script).await;
    assert_eq!(output.exit_code, 3);
    assert!(output.stdout_truncated && !output.stderr_truncated);
    assert_eq!((output.stdout.len(), output.stderr.as_str()), (EXEC_OUTPUT_BYTES_MAX, "e\n"));
    let files = run(&*driver, &name, "ls /run/plimsoll").await.stdout;
    // Its own files alone, as many of them as are there already.
    let execs = files.lines().filter_map(|file| file.strip_prefix("exec-")?.split('.').next());
    assert_eq!(execs.collect::<BTreeSet<_>>().len(), 1, "{files}");
    assert!(!guests.dir(&name).path().join("host-files").exists());
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn a_bad_root_file_system_is_named() {
    let host = Host::new();
    let guests = host.guests();
    let Some(driver) = driver(&guests).await else { return };
    let data = host.data();
    for rootfs in ["relative", "/no/such/folder", "/bin/busybox", "/", data.to_str().unwrap()] {
        let mut spec = spec(Driver::Gvisor, 160, &[]);
        spec.rootfs = Some(rootfs.to_owned());
        match driver.start(&spec).await {
            Err(StartError::Invalid { field: "rootfs", .. }) => {}
            other => panic!("{rootfs}: {other:?}"),
        }
    }
    let missing = spec(Driver::Gvisor, 161, &["/no/such/program"]);
    let error = driver.start(&missing).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
    host.assert_gone(&GuestName::of(&missing)).await;
}

#[tokio::test]
async fn a_root_file_system_without_a_shell_can_do_less_and_says_so() {
    let host = Host::new();
    let guests = host.guests();
    let Some(driver) = driver(&guests).await else { return };
    let rootfs = host.data().join("bare");
    std::fs::create_dir_all(rootfs.join("bin")).unwrap();
    std::fs::copy("/bin/busybox", rootfs.join("bin/busybox")).unwrap();
    let mut spec = spec(Driver::Gvisor, 190, &["/bin/busybox", "sleep", "1000"]);
    spec.rootfs = Some(rootfs.to_str().unwrap().to_owned());
    spec.baked = true;
    let name = GuestName::of(&spec);
    let started = driver.start(&spec).await.unwrap();
    assert!(started.notes.iter().any(|note| note.contains("booted plainly")), "{started:?}");
    // Until a command has run in it, it can be written out.
    driver.pause(&name, PauseKind::Checkpoint).await.unwrap();
    driver.resume(&name).await.unwrap();
    let command = ["/bin/busybox", "echo", "hi"].map(str::to_owned).to_vec();
    let output = driver.exec(&name, ExecRequest { command, timeout: LONG }).await.unwrap();
    assert_eq!((output.exit_code, output.stdout.as_str()), (0, "hi\n"), "{output:?}");
    let refused = driver.pause(&name, PauseKind::Checkpoint).await.unwrap_err();
    assert!(refused.to_string().contains("only be frozen"), "{refused}");
    assert_eq!(driver.status(&name).await.unwrap().status, GuestStatus::Running);
    driver.pause(&name, PauseKind::Keep).await.unwrap();
    driver.end(&name).await.unwrap();
    host.assert_gone(&name).await;
}

/// An agent that is killed while it writes a guest out: this test binary, called again.
#[tokio::test]
#[ignore = "a process for other tests"]
async fn agent_to_be_killed() {
    let Some(data) = std::env::var_os("PLIMSOLL_TEST_DATA") else { return };
    let guests = Guests::open(data.as_ref(), crate::host::shim(), true).unwrap();
    let driver = GvisorDriver::new(Arc::clone(&guests), GvisorConfig::default());
    let spec = counter(170);
    let name = GuestName::of(&spec);
    if driver.status(&name).await.is_err() {
        driver.start(&spec).await.unwrap();
        run(&driver, &name, "head -c 60000000 /dev/urandom > /ballast").await;
    }
    std::fs::write(guests.data().join("ready"), "").unwrap();
    let _ = driver.pause(&name, PauseKind::Checkpoint).await;
    std::fs::write(guests.data().join("paused"), "").unwrap();
}

/// Kills the agent, and its guest's shim or not, at each step of a checkpoint: the guest is found
/// running or written out, and goes on from where it was.
#[tokio::test]
async fn a_checkpoint_cut_short_loses_nothing() {
    let host = Host::new();
    let guests = host.guests();
    let Some(driver) = driver(&guests).await else { return };
    let data = host.data();
    let name = GuestName::of(&counter(170));
    let dir = guests.dir(&name);
    let image = |folder: &str| dir.path().join(folder).join("checkpoint.img");
    let size = |path: std::path::PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
    let steps: [(&str, &dyn Fn() -> bool); 5] = [
        ("asked", &|| data.join("ready").exists()),
        ("staged", &|| dir.path().join("checkpoint.new").exists()),
        ("begun", &|| image("checkpoint.new").exists()),
        ("half written", &|| size(image("checkpoint.new")) > 1 << 20),
        ("sealed", &|| size(image("checkpoint")) > 0),
    ];
    let mut before = 0;
    let mut outcomes = Vec::new();
    for (step, reached) in steps {
        for kill_shim in [false, true] {
            for mark in ["ready", "paused"] {
                let _ = std::fs::remove_file(data.join(mark));
            }
            let mut agent = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "gvisor::agent_to_be_killed", "--ignored", "--nocapture"])
                .env("PLIMSOLL_TEST_DATA", &data)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // The next step may be reached before the kill: each of them must do.
            wait_for(step, async || reached() || data.join("paused").exists()).await;
            let cut = !data.join("paused").exists();
            agent.kill().unwrap();
            agent.wait().unwrap();
            if kill_shim && dir.path().join("call").exists() {
                let state = std::fs::read(dir.path().join("state.json")).unwrap_or_default();
                let state: serde_json::Value = serde_json::from_slice(&state).unwrap_or_default();
                let shim = state["shim"]["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
                let _ = kill_process(shim.unwrap(), Signal::KILL);
                let line = format!("/proc/{}/cmdline", shim.unwrap().as_raw_nonzero());
                let lives = || std::fs::read(&line).is_ok_and(|line| !line.is_empty());
                wait_for("the shim's end", async || !lives()).await;
            }
            let found = driver.adopt().await.unwrap();
            assert_eq!(found.guests.len(), 1, "{step} {kill_shim}: {:?}", found.broken);
            wait_for("the shim's work", async || {
                let status = driver.status(&name).await.unwrap().status;
                !matches!(status, GuestStatus::Pausing | GuestStatus::Resuming)
            })
            .await;
            let state = driver.status(&name).await.unwrap();
            outcomes.push((step, cut, kill_shim, state.status));
            match state.status {
                GuestStatus::Paused => driver.resume(&name).await.unwrap(),
                GuestStatus::Running if kill_shim => {
                    // Without its shim it takes no calls; that it goes on is seen from its use.
                    let used =
                        async || driver.usage(&name).await.unwrap().cpu_millis_total.unwrap_or(0);
                    let earlier = used().await;
                    wait_for("the guest to go on", async || used().await > earlier).await;
                    driver.end(&name).await.unwrap();
                    before = 0;
                    continue;
                }
                GuestStatus::Running => {}
                other => panic!("{step} {kill_shim}: {other} {state:?}"),
            }
            let after = counted_through_a_pause(&driver, &name).await;
            assert!(after >= before, "{step} {kill_shim}: {after} after {before}");
            before = after;
        }
    }
    eprintln!("step, cut short, shim killed, found: {outcomes:#?}");
    let both = |wanted| outcomes.iter().any(|(_, _, _, status)| *status == wanted);
    assert!(both(GuestStatus::Paused) && both(GuestStatus::Running));
    driver.end(&name).await.unwrap();
    for mark in ["ready", "paused"] {
        let _ = std::fs::remove_file(data.join(mark));
    }
    host.assert_gone(&name).await;
}

#[tokio::test]
async fn what_an_earlier_agent_left_of_a_bake_or_a_fork_is_cleared() {
    let host = Host::new();
    let guests = host.guests();
    let Some(driver) = driver(&guests).await else { return };
    let spec = spec(Driver::Gvisor, 180, &[]);
    let name = GuestName::of(&spec);
    driver.start(&spec).await.unwrap();
    // A sandbox at work on an image is a guest's folder in another place.
    let work = host.data().join("baked/.work-left");
    std::fs::rename(guests.dir(&name).path(), &work).unwrap();
    std::fs::create_dir_all(host.data().join("branches/x")).unwrap();
    let found = driver.adopt().await.unwrap();
    assert!(found.guests.is_empty() && found.broken.is_empty());
    assert!(!work.exists() && !host.data().join("branches").exists());
    host.assert_gone(&name).await;
}
