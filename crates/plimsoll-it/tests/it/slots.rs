//! Slots, the resume queue and preemption over real guests.
//!
//! gVisor guests leave the host when they are paused; processes stay on it. Both tables of who
//! holds a slot are walked through state by state.

use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::rig::{Folder, Server, metric, processes_of, wait_for};

/// A cell with one host of gVisor guests and a pool of so many slots. `None` where the machine has
/// no gVisor.
fn sandboxes(folder: &Folder, slots: u64, settings: &[&str]) -> Option<Server> {
    if !Path::new("/usr/bin/runsc").exists() || !Path::new("/bin/busybox").exists() {
        crate::rig::skip("gVisor: runsc or a static busybox is missing");
        return None;
    }
    let words = ["--driver=gvisor,process", "--heartbeat-millis=1000", "--sample-millis=250"];
    let server = folder.up(&words);
    folder.run(&["templates", "create", "box", "driver=gvisor", "memory_mib=96"]).ok();
    pool(folder, slots, settings);
    Some(server)
}

fn pool(folder: &Folder, slots: u64, settings: &[&str]) {
    let limit = format!("limit={slots}");
    let words = [&["pools", "set", "local", &limit], settings].concat();
    folder.run(&words).ok();
}

/// A guest whose shell counts for as long as it runs: what it counts is in its memory alone.
fn counter(folder: &Folder) -> String {
    let script = "n=0; while sleep 0.3; do n=$((n+1)); echo $n > /tmp/n; done";
    folder.create(&["--template=box", "--", "sh", "-c", script])
}

fn counted(folder: &Folder, id: &str) -> u64 {
    let done = folder.run(&["exec", id, "--", "cat", "/tmp/n"]).ok();
    done.stdout.trim().parse().unwrap_or(0)
}

fn counts(folder: &Folder, id: &str, above: u64) {
    wait_for("the count to go on", || counted(folder, id) > above);
}

fn record(folder: &Folder, id: &str) -> Value {
    folder.run(&["show", id, "--json"]).ok().json()
}

fn slots(folder: &Folder) -> (f64, f64, f64) {
    let client = folder.operator();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let page = runtime.block_on(client.metrics()).unwrap();
    let series = |state: &str| {
        let name = format!("plimsoll_pool_slots{{pool=\"local\",state=\"{state}\"}}");
        metric(&page, &name).unwrap_or_else(|| panic!("no {name} in\n{page}"))
    };
    (series("held"), series("released"), series("waiting_resume"))
}

/// Runs a command beside the test.
fn beside(folder: &Folder, words: &[&str]) -> Child {
    folder.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The processes of one guest: its shim first, then its sandbox.
fn processes(folder: &Folder, id: &str) -> Vec<Pid> {
    let mut found: Vec<Pid> = processes_of(folder.path())
        .into_iter()
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
            line.is_ok_and(|line| String::from_utf8_lossy(&line).contains(id))
        })
        .collect();
    found.sort_by_key(|pid| {
        let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
        let line = String::from_utf8_lossy(&line.unwrap_or_default()).into_owned();
        !line.contains("guest-shim")
    });
    found
}

/// Seed 001, sections 1 and 2, over real checkpoints; public failure P1.
#[test]
fn a_slot_is_free_once_the_checkpoint_is_written_and_a_resume_waits_for_one() {
    let folder = Folder::new();
    let Some(_server) = sandboxes(&folder, 4, &["pause=checkpoint"]) else { return };
    let guests: Vec<String> = (0..4).map(|_| counter(&folder)).collect();
    let first = guests[0].as_str();
    counts(&folder, first, 2);
    assert_eq!(slots(&folder), (4.0, 0.0, 0.0));

    // The shim that writes the checkpoint is held: the pause has been asked for and is not over.
    let shim = processes(&folder, first)[0];
    kill_process(shim, Signal::STOP).unwrap();
    let mut pause = beside(&folder, &["pause", first]);
    wait_for("the pause to begin", || folder.status(first) == "pausing");
    let before = record(&folder, first);
    assert_eq!(before["slot_released"], false, "{before}");
    assert!(before["charge_mib"].as_u64().unwrap() > 0, "{before}");
    assert!(processes(&folder, first).len() > 1, "its sandbox is in memory");
    let full = folder.run(&["create", "--template=box", "--deadline=0", "--json"]).exits(75);
    assert_eq!(full.json()["code"], "no_capacity");
    let fifth = folder.create(&["--template=box", "--on-full=queue", "--", "sleep", "600"]);
    assert_eq!(folder.status(&fifth), "queued");
    assert_eq!(folder.status(first), "pausing");

    kill_process(shim, Signal::CONT).unwrap();
    wait_for("the pause to end", || folder.status(first) == "paused");
    assert!(pause.wait().unwrap().success());
    let paused = record(&folder, first);
    assert_eq!((&paused["slot_released"], &paused["charge_mib"]), (&true.into(), &0.into()));
    wait_for("the sandbox to leave memory", || processes(&folder, first).is_empty());
    wait_for("the fifth", || folder.status(&fifth) == "running");
    assert_eq!(slots(&folder), (4.0, 1.0, 0.0));

    // Its resume waits: 202, still paused, and says for what.
    let waits = folder.run(&["resume", first, "--json", "--deadline=0"]).ok().json();
    assert_eq!(waits["status"], "paused", "{waits}");
    assert!(waits["resume_requested_at"].is_string(), "{waits}");
    let reason = waits["reason"].as_str().unwrap();
    assert!(reason.contains("waiting for a free slot on pool local"), "{reason}");
    assert_eq!(slots(&folder), (4.0, 1.0, 1.0));

    // A slot comes free, and it goes on counting where it stood.
    folder.run(&["rm", &fifth]).ok();
    wait_for("the resume", || folder.status(first) == "running");
    let after = counted(&folder, first);
    assert!(after >= 2, "it has kept its memory: {after}");
    counts(&folder, first, after);
    assert_eq!(slots(&folder), (4.0, 0.0, 0.0));
}

/// Seed 001, section 3; public failure P2: the idle one makes room, keeps what it had, and its
/// next call brings it back through the queue.
#[test]
fn an_idle_guest_makes_room_by_itself_and_comes_back_with_its_memory() {
    let folder = Folder::new();
    let idle = ["pause=checkpoint", "preemption.mode=idle", "preemption.idle_seconds=2"];
    let more = ["preemption_protect_seconds=1", "preemption_pair_seconds=1"];
    let Some(_server) = sandboxes(&folder, 2, &[&idle[..], &more[..]].concat()) else { return };
    let script = "n=kept; while :; do read line < /tmp/ask; echo $n-$line > /tmp/said; done";
    let setup = format!("mkfifo /tmp/ask; {script}");
    let first = folder.create(&["--template=box", "--", "sh", "-c", &setup]);
    let ask = |word: &str| {
        let script = format!("echo {word} > /tmp/ask; sleep 0.5; cat /tmp/said");
        folder.run(&["exec", &first, "--", "sh", "-c", &script]).ok().stdout
    };
    wait_for("the guest's pipe", || {
        folder.run(&["exec", &first, "--", "test", "-p", "/tmp/ask"]).code == 0
    });
    assert_eq!(ask("one"), "kept-one\n");
    // The other is not to be paused.
    let second = folder.create(&["--template=box", "--preemptible=false", "--", "sleep", "600"]);
    let third = folder.create(&["--template=box", "--on-full=queue", "--", "sleep", "600"]);
    wait_for("the third", || folder.status(&third) == "running");
    let victim = record(&folder, &first);
    assert_eq!((&victim["status"], &victim["idled"]), (&"paused".into(), &true.into()));
    let reason = victim["reason"].as_str().unwrap();
    assert!(reason.contains("paused to make room on pool local"), "{reason}");
    assert_eq!(folder.status(&second), "running");
    // Its call waits, makes the third idle one leave in its turn, and finds the variable again.
    assert_eq!(ask("two"), "kept-two\n");
    wait_for("the third to leave", || folder.status(&third) == "paused");
    let events = folder.run(&["events", "--json"]).ok().json();
    let preempted: Vec<&Value> = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["type"] == "sandbox.preempted")
        .map(|event| &event["data"]["id"])
        .collect();
    assert_eq!(preempted, [&Value::from(first.as_str()), &Value::from(third.as_str())]);
}

/// Seed 001, section 1, for a pool whose pause keeps the guest on the host: every state but the
/// end holds the slot.
#[test]
fn a_process_keeps_its_slot_in_every_state_until_it_has_ended() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=process", "--heartbeat-millis=500"]);
    pool(&folder, 1, &["preemption.mode=lru", "preemption.min_run_seconds=1"]);
    let sleeper = ["--template=shell", "--memory-mib=64", "--", "sleep", "600"];
    let id = folder.create(&sleeper);
    let full = |what: &str| {
        let no = folder.run(&["create", "--template=shell", "--memory-mib=64", "--deadline=0"]);
        assert_eq!(no.code, 75, "{what}: {no:?}");
        assert_eq!(slots(&folder), (1.0, 0.0, 0.0), "{what}");
    };
    full("running");
    folder.run(&["pause", &id]).ok();
    let paused = record(&folder, &id);
    assert_eq!((&paused["status"], &paused["slot_released"]), (&"paused".into(), &false.into()));
    full("paused");
    // A pause frees nothing here, so nobody is paused for it either.
    let waiting =
        folder.create(&["--template=shell", "--memory-mib=64", "--on-full=queue", "--", "true"]);
    assert_eq!(folder.status(&waiting), "queued");
    let resumed = folder.run(&["resume", &id, "--json"]).ok().json();
    assert_eq!(resumed["status"], "running");
    folder.run(&["stop", &id]).ok();
    assert_eq!(folder.status(&id), "stopped");
    full("stopped");
    assert_eq!(folder.status(&waiting), "queued");
    folder.run(&["start", &id]).ok();
    wait_for("the start", || folder.status(&id) == "running");
    full("running again");
    folder.run(&["rm", &id]).ok();
    wait_for("the one that waited", || {
        ["running", "terminated"].contains(&folder.status(&waiting).as_str())
    });
}
