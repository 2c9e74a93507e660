//! `kill -9` at the worst of times.

use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Folder, Server, wait_for};

/// A cell on a port of its choice, or on this one.
fn cell(folder: &Folder, listen: &str) -> Server {
    let listen = format!("--listen={listen}");
    let server = folder.serve(&["cell", &listen], "plimsoll-data/address");
    wait_for("the cell", || folder.run(&["status", "--deadline=0"]).code == 0);
    server
}

fn address(folder: &Folder) -> String {
    let path = folder.path().join("plimsoll-data/address");
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

fn agent(folder: &Folder, words: &[&str]) -> Server {
    let cell = format!("--cell=http://{}", address(folder));
    let fixed = [
        "agent",
        &cell,
        "--key-file=plimsoll-data/host.key",
        "--name=h1",
        "--listen=127.0.0.1:0",
        "--heartbeat-millis=500",
        "--sample-millis=200",
    ];
    let words: Vec<&str> = fixed.iter().chain(words).copied().collect();
    folder.serve(&words, "plimsoll-agent/address")
}

fn host(folder: &Folder) -> Value {
    let done = folder.run(&["hosts", "show", "h1", "--json"]);
    if done.code == 0 { done.json() } else { Value::Null }
}

fn fresh(folder: &Folder) {
    wait_for("a fresh host", || host(folder)["status"] == "fresh");
}

/// The guests that run, each with its charge.
fn running(folder: &Folder) -> Vec<(String, Value)> {
    let list = folder.run(&["ls", "--json", "--status=running"]).ok().json();
    let mut all: Vec<_> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["id"].as_str().unwrap().to_owned(), one["charge_mib"].clone()))
        .collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

fn guests(folder: &Folder, count: usize) -> Vec<String> {
    (0..count)
        .map(|_| {
            folder.create(&[
                "--template=shell",
                "--memory-mib=64",
                "--",
                "sh",
                "-c",
                "echo $$ > pid; sleep 600",
            ])
        })
        .collect()
}

fn pid(folder: &Folder, id: &str) -> String {
    folder.run(&["exec", id, "--", "cat", "pid"]).ok().stdout
}

#[test]
fn a_cell_that_is_killed_comes_back_with_the_same_guests_and_charges() {
    let folder = Folder::new();
    let server = cell(&folder, "127.0.0.1:0");
    let _agent = agent(&folder, &["--driver=process"]);
    fresh(&folder);
    // Charges that do not decay while the test looks.
    folder.run(&["pools", "set", "local", "regime=committed"]).ok();
    let ids = guests(&folder, 30);
    let before = running(&folder);
    assert_eq!(before.len(), 30);
    assert!(before.iter().all(|(_, charge)| *charge == 64), "{before:?}");
    let pids: Vec<_> = ids.iter().map(|id| pid(&folder, id)).collect();
    let at = address(&folder);
    server.kill();
    folder.run(&["ls", "--deadline=0"]).exits(75).says("hint: ");

    let _server = cell(&folder, &at);
    fresh(&folder);
    assert_eq!(running(&folder), before);
    wait_for("the host's own figures", || host(&folder)["pending_mib"] == 0);
    let seen = host(&folder);
    assert_eq!((&seen["guests"], &seen["charged_mib"]), (&30.into(), &1920.into()));
    assert_eq!(running(&folder), before);
    let after: Vec<_> = ids.iter().map(|id| pid(&folder, id)).collect();
    assert_eq!(after, pids);
}

/// Public failure H5.
#[test]
fn guests_outlive_an_agent_that_is_killed_and_are_taken_over() {
    let folder = Folder::new();
    let _cell = cell(&folder, "127.0.0.1:0");
    let server = agent(&folder, &["--driver=process"]);
    fresh(&folder);
    let ids = guests(&folder, 3);
    let pids: Vec<_> = ids.iter().map(|id| pid(&folder, id)).collect();
    let incarnation = host(&folder)["incarnation"].as_u64().unwrap();
    server.kill();
    for pid in &pids {
        assert!(Path::new("/proc").join(pid.trim()).exists(), "guest {pid} has died");
    }
    let _agent = agent(&folder, &["--driver=process"]);
    wait_for("the next incarnation", || {
        host(&folder)["incarnation"].as_u64().is_some_and(|next| next > incarnation)
    });
    fresh(&folder);
    assert_eq!(running(&folder).len(), 3);
    let after: Vec<_> = ids.iter().map(|id| pid(&folder, id)).collect();
    assert_eq!(after, pids);
    // Nothing was started twice, and they can still be ended.
    for id in &ids {
        folder.run(&["rm", id]).ok();
    }
    for pid in &pids {
        wait_for("the guest's end", || !Path::new("/proc").join(pid.trim()).exists());
    }
    wait_for("an empty host", || host(&folder)["guests"] == 0);
}

/// A checkpoint that is cut short is none: the guest runs or is paused, and is one guest.
#[test]
fn a_checkpoint_that_is_cut_short_loses_no_guest() {
    if !Path::new("/usr/bin/runsc").exists() || !Path::new("/bin/busybox").exists() {
        crate::rig::skip("gVisor: runsc or a static busybox is missing");
        return;
    }
    let folder = Folder::new();
    let _cell = cell(&folder, "127.0.0.1:0");
    let server = agent(&folder, &["--driver=gvisor"]);
    fresh(&folder);
    let body = ["driver=gvisor", "memory_mib=256", "overhead_mib=64"];
    folder.run(&[&["templates", "create", "box"], &body[..]].concat()).ok();
    let id =
        folder.create(&["--template=box", "--", "sh", "-c", "echo kept > /tmp/file; sleep 600"]);
    let pause = folder
        .command(&["pause", &id, "--deadline=0"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the pause", || folder.status(&id) != "running");
    server.kill();
    let _agent = agent(&folder, &["--driver=gvisor"]);
    drop(pause.wait_with_output());
    fresh(&folder);
    wait_for("a settled guest", || {
        let status = folder.status(&id);
        assert!(["running", "pausing", "paused"].contains(&status.as_str()), "{status}");
        status != "pausing"
    });
    let done = folder.run(&["exec", &id, "--", "cat", "/tmp/file"]).ok();
    assert_eq!(done.stdout, "kept\n");
    folder.run(&["rm", &id]).ok();
    wait_for("an empty host", || host(&folder)["guests"] == 0);
}

/// Public failures H2 and H6, and the end of a host: stale is no candidate, dead frees what it held.
#[test]
fn a_host_that_falls_silent_takes_nothing_and_is_declared_dead() {
    let folder = Folder::new();
    let _cell = cell(&folder, "127.0.0.1:0");
    let server = agent(&folder, &["--driver=simulated", "--simulated-start-millis=1"]);
    fresh(&folder);
    folder.run(&["templates", "create", "s", "driver=simulated", "memory_mib=64"]).ok();
    let bounds = ["stale_seconds=2", "dead_seconds=6"];
    folder.run(&[&["pools", "set", "local"], &bounds[..]].concat()).ok();
    let id = folder.create(&["--template=s"]);
    server.signal(Signal::STOP);
    wait_for("a stale host", || host(&folder)["status"] == "stale");
    let refused = folder.run(&["create", "--template=s", "--deadline=0", "--json"]).exits(75);
    let problem = refused.json();
    assert_eq!(problem["code"], "no_healthy_hosts", "{problem}");
    wait_for("a dead host", || host(&folder)["status"] == "dead");
    wait_for("the guest's end", || folder.status(&id) == "failed");
    let record = folder.run(&["show", &id, "--json"]).ok().json();
    assert!(record["reason"].as_str().unwrap().contains("host_lost"), "{record}");
    let quota = folder.run(&["quota", "--json"]).ok().json();
    assert_eq!(quota["concurrency"]["sandboxes"]["used"], 0);
    // It wakes up with the guest running: the fleet wins, nothing runs unseen.
    server.signal(Signal::CONT);
    fresh(&folder);
    wait_for("the host to take work again", || {
        folder.run(&["create", "--template=s", "--deadline=1"]).code == 0
    });
}

/// A leader that was put to sleep while another took over cannot start anything when it wakes up.
#[test]
fn a_leader_that_wakes_up_too_late_starts_nothing() {
    let folder = Folder::new();
    let old = cell(&folder, "127.0.0.1:0");
    let first = agent(&folder, &["--driver=simulated", "--simulated-start-millis=1"]);
    fresh(&folder);
    folder.run(&["templates", "create", "s", "driver=simulated", "memory_mib=64"]).ok();
    folder.create(&["--template=s"]);
    old.signal(Signal::STOP);

    // The machine's data is taken over elsewhere: a later epoch over the same rows.
    let next = Folder::new();
    let (from, to) = (folder.path().join("plimsoll-data"), next.path().join("plimsoll-data"));
    std::fs::create_dir(&to).unwrap();
    for entry in std::fs::read_dir(&from).unwrap().filter_map(Result::ok) {
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    let _new = cell(&next, "127.0.0.1:0");
    first.kill();
    let own = folder.path().join("plimsoll-agent");
    let own_data = format!("--data={}", own.display());
    let cell_url = format!("--cell=http://{}", address(&next));
    let key = format!("--key-file={}", to.join("host.key").display());
    let words = [
        "agent",
        &cell_url,
        &key,
        "--name=h1",
        "--listen=127.0.0.1:0",
        &own_data,
        "--heartbeat-millis=500",
        "--driver=simulated",
        "--simulated-start-millis=1",
    ];
    let at = std::fs::read_to_string(own.join("address")).unwrap();
    let listen = format!("--listen={}", at.trim());
    let words: Vec<&str> = words
        .iter()
        .map(|word| if word.starts_with("--listen") { listen.as_str() } else { word })
        .collect();
    let _second = folder.serve(&words, "plimsoll-agent/address");
    fresh(&next);
    next.create(&["--template=s"]);
    assert_eq!(running(&next).len(), 2);

    // The old one wakes up, believes that it leads, and knows the host's address and secret.
    old.signal(Signal::CONT);
    let refused = folder.run(&["create", "--template=s", "--deadline=2"]);
    assert_ne!(refused.code, 0, "{refused:?}");
    let sequence = host(&next)["sequence"].as_u64().unwrap();
    wait_for("two more reports", || {
        host(&next)["sequence"].as_u64().is_some_and(|now| now >= sequence + 2)
    });
    let seen = host(&next);
    assert_eq!(seen["guests"], 2, "{seen}");
    assert_eq!(seen["unexpected_guests"], serde_json::json!([]), "{seen}");
}

/// `kill -9` of cell and agent while creates are under way: the callers that repeat their keys get
/// in, each sandbox has one guest, and the host is not blamed for what it was not there to answer.
#[test]
fn creates_that_a_kill_cut_short_come_about_after_the_restart() {
    const CREATES: usize = 4;
    let folder = Folder::new();
    let words = ["--driver=process", "--heartbeat-millis=500"];
    let server = folder.up(&words);
    let at = format!("--listen={}", address(&folder));
    let create = ["create", "--template=process", "--memory-mib=16", "--", "sleep", "600"];
    let mut callers: Vec<_> =
        (0..CREATES).map(|_| folder.command(&create).spawn().unwrap()).collect();
    // All are known: none has yet to read where the cell is, some may have been started.
    wait_for("the creates", || {
        let done = folder.run(&["ls", "--json", "--deadline=0"]);
        done.code == 0 && done.json()["items"].as_array().unwrap().len() == CREATES
    });
    server.kill();
    let again = ["up", &at, "--agent-listen=127.0.0.1:0", "--host-name=h1"];
    let again: Vec<&str> = again.into_iter().chain(words).collect();
    let _server = folder.serve(&again, "plimsoll-data/address");
    fresh(&folder);
    for caller in &mut callers {
        assert!(caller.wait().unwrap().success());
    }
    let all = folder.run(&["ls", "--json"]).ok().json();
    let all = all["items"].as_array().unwrap();
    assert_eq!(all.len(), CREATES, "{all:?}");
    assert!(all.iter().all(|one| one["status"] == "running"), "{all:?}");
    wait_for("a report of all guests", || {
        let host = host(&folder);
        host["guests"] == CREATES && host["unexpected_guests"].as_array().unwrap().is_empty()
    });
    assert_eq!(host(&folder)["failures_in_a_row"], 0);
}
