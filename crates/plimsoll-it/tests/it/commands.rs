//! Commands and their exit codes that no other test covers.

use crate::rig::{Folder, wait_for};

#[test]
fn objects_are_made_changed_listed_and_removed() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=process,simulated", "--end-guests"]);
    folder.run(&["plans", "create", "small", "concurrency.sandboxes.limit=1"]).ok();
    folder.run(&["tenants", "create", "acme", "plan=small"]).ok();
    folder.run(&["tenants"]).ok().says("acme").says("small");
    let key = folder.run(&["keys", "create", "--role=tenant", "--for-tenant=acme"]).ok();
    let key = key.stdout.trim().to_owned();

    // The key itself may stand in the environment, and speaks for its tenant alone.
    let mut command = folder.command(&["create", "--template=sleeper", "--memory-mib=64"]);
    assert!(command.env("PLIMSOLL_KEY", &key).output().unwrap().status.success());
    let mut command = folder.command(&["ls", "--json"]);
    let output = command.env("PLIMSOLL_KEY", &key).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&list["items"][0]["tenant"], &list["items"][0]["host"]),
        (&"acme".into(), &serde_json::Value::Null)
    );
    let mut command = folder.command(&["hosts"]);
    let output = command.env("PLIMSOLL_KEY", &key).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    // Quota: refused for good, as nothing changes by waiting.
    let mut command = folder.command(&["create", "--template=sleeper", "--memory-mib=64"]);
    let output = command.env("PLIMSOLL_KEY", &key).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("quota_exceeded"));

    folder.run(&["pools", "create", "fast", "limit=3", "preemption.mode=idle"]).ok();
    let pool = folder.run(&["pools", "set", "fast", "limit=null"]).ok().json();
    assert_eq!(
        (&pool["limit"], &pool["preemption"]["mode"]),
        (&serde_json::Value::Null, &"idle".into())
    );
    folder.run(&["pools", "rm", "fast"]).ok();
    folder.run(&["pools", "show", "fast"]).exits(1).says("not_found");
}

#[test]
fn a_drained_host_takes_nothing_new() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=simulated,process", "--simulated-start-millis=1"]);
    let id = folder.create(&["--template=sleeper", "--memory-mib=64"]);
    folder.run(&["drain", "h1"]).ok().says("1 guests on it run on");
    folder.run(&["create", "--template=sleeper", "--deadline=0"]).exits(75);
    folder.run(&["hosts"]).ok().says("draining");
    folder.run(&["explain", "--template=sleeper"]).ok().says("refuse").says("draining");
    assert_eq!(folder.status(&id), "running");
    folder.run(&["undrain", "h1"]).ok();
    folder.create(&["--template=sleeper", "--memory-mib=64"]);
}

#[test]
fn reservations_are_held_committed_and_released() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=simulated,process"]);
    let held = folder.run(&["reserve", "--key=a", "--memory-mib=64", "--json"]).ok().json();
    let again = folder.run(&["reserve", "--key=a", "--memory-mib=64", "--json"]).ok().json();
    assert_eq!(held["id"], again["id"]);
    folder.run(&["reserve", "--key=a", "--memory-mib=65"]).exits(1).says("conflict");
    let id = held["id"].as_str().unwrap();
    let dry = folder.run(&["reserve", "--key=b", "--memory-mib=64", "--mode=dry_run", "--json"]);
    assert_eq!(dry.ok().json()["dry_run"], true);
    let committed = folder.run(&["commit", id, "--json"]).ok().json();
    assert_eq!(committed["state"], "committed");
    folder.run(&["release", id]).ok().says("released");
    folder.run(&["release", id]).ok().says("released");
    // One that is not committed ends by itself, and says so to a late commit.
    let short = ["reserve", "--key=c", "--memory-mib=64", "--ttl-seconds=1", "--json"];
    let short = folder.run(&short).ok().json()["id"].as_str().unwrap().to_owned();
    wait_for("its end", || {
        folder.run(&["status", "--json"]).ok().json()["counts"]["reservations_held"] == 0
    });
    folder.run(&["commit", &short]).exits(1).says("reservation_expired");
}

#[test]
fn settings_come_from_flags_then_variables_then_the_file() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=simulated,process"]);
    let file = "[create]\ntemplate = \"sleeper\"\nmemory_mib = 48\n";
    std::fs::write(folder.path().join("plimsoll.toml"), file).unwrap();
    let memory = |variable: Option<&str>, words: &[&str]| {
        let words: Vec<&str> = ["create", "--json"].iter().chain(words).copied().collect();
        let mut command = folder.command(&words);
        if let Some(value) = variable {
            command.env("PLIMSOLL_MEMORY_MIB", value);
        }
        let output = command.output().unwrap();
        let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        record["memory_mib"].as_u64().unwrap()
    };
    assert_eq!(memory(None, &[]), 48);
    assert_eq!(memory(Some("32"), &[]), 32);
    assert_eq!(memory(Some("32"), &["--memory-mib=16"]), 16);
    std::fs::write(folder.path().join("plimsoll.toml"), "[create]\nmemory = 48\n").unwrap();
    folder.run(&["ls"]).exits(2).says("memory").says("plimsoll.toml");
}

#[test]
fn events_tell_what_happened() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=simulated,process", "--simulated-start-millis=1"]);
    let id = folder.create(&["--template=sleeper", "--memory-mib=64"]);
    folder.run(&["rm", &id]).ok();
    let kinds = || -> Vec<String> {
        let list = folder.run(&["events", "--json"]).ok().json();
        let mine = |event: &&serde_json::Value| event["data"]["id"] == id.as_str();
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(mine)
            .map(|event| event["type"].as_str().unwrap().to_owned())
            .collect()
    };
    wait_for("the last event", || kinds().last().is_some_and(|kind| kind == "sandbox.terminated"));
    assert_eq!(kinds(), ["sandbox.created", "sandbox.started", "sandbox.terminated"]);
}

#[test]
fn a_second_server_in_one_folder_says_so() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=simulated,process"]);
    folder.run(&["cell", "--listen=127.0.0.1:0"]).exits(1).says("hint: is another cell up");
    // Another store does not make it another folder: keys and address are the first one's.
    let address = std::fs::read(folder.path().join("plimsoll-data/address")).unwrap();
    let words = ["cell", "--listen=127.0.0.1:0", "--store=memory"];
    folder.run(&words).exits(1).says("held by another cell").says("hint: is another cell up");
    assert_eq!(std::fs::read(folder.path().join("plimsoll-data/address")).unwrap(), address);
    folder.run(&["ls"]).ok();
}

#[test]
fn a_stopped_sandbox_starts_again() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=simulated,process", "--simulated-start-millis=1"]);
    for template in ["process", "sleeper"] {
        let id = folder.create(&["--template", template, "--", "sleep", "600"]);
        for _ in 0..2 {
            folder.run(&["stop", &id]).ok();
            let started = folder.run(&["start", &id]).ok();
            assert!(started.stdout.contains("running"), "{started:?}");
            assert_eq!(folder.status(&id), "running");
        }
        folder.run(&["pause", &id]).ok().says("paused");
        folder.run(&["resume", &id]).ok().says("running");
        folder.run(&["stop", &id]).ok();
        folder.run(&["start", &id, "--no-wait"]).ok();
        folder.run(&["wait", &id, "--status=running"]).ok();
        folder.run(&["rm", &id]).ok();
    }
}

/// What has no room keeps its place, and its command says after a while that this is for now.
#[test]
fn a_resume_that_waits_in_vain_is_refused_for_now() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=simulated,process", "--simulated-start-millis=1"]);
    folder.run(&["pools", "set", "local", "pause=checkpoint", "limit=1"]).ok();
    let first = folder.create(&["--template=sleeper"]);
    folder.run(&["pause", &first]).ok();
    let second = folder.create(&["--template=sleeper"]);
    let waits = folder.run(&["resume", &first, "--deadline=1"]).exits(75);
    let waits = waits.says("waiting for a free slot on pool local");
    assert!(waits.stderr.contains("not running") && waits.stdout.contains("paused"), "{waits:?}");
    folder.run(&["rm", &second]).ok();
    wait_for("the resume", || folder.status(&first) == "running");
}

#[test]
fn decisions_say_where_hosts_were_counted() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=simulated,process", "--simulated-start-millis=1"]);
    folder.create(&["--template=sleeper"]);
    folder.run(&["decisions"]).ok().says("not counted: it was let in");
    folder.run(&["pools", "set", "local", "limit=1"]).ok();
    folder.run(&["create", "--template=sleeper", "--deadline=0"]).exits(75);
    folder.run(&["decisions", "--code=no_capacity"]).ok().says(" of 1 ");
}

/// What a guest's own command says can be read while the guest is on its host, and no longer.
#[test]
fn the_output_of_a_guest_is_shown() {
    let folder = Folder::new();
    let _server = folder.up(&["--driver=process,simulated"]);
    let script = "echo one; echo two >&2; sleep 600";
    let id = folder.create(&["--template=process", "--", "sh", "-c", script]);
    wait_for("both lines", || folder.run(&["logs", &id]).ok().stdout == "one\ntwo\n");
    let cut = folder.run(&["logs", &id, "--bytes=4"]).ok().says("--bytes shows more");
    assert_eq!(cut.stdout, "two\n");
    let json = folder.run(&["logs", &id, "--json"]).ok().json();
    assert_eq!((&json["output"], &json["truncated"]), (&"one\ntwo\n".into(), &false.into()));
    folder.run(&["logs", &id, "--bytes=524289"]).exits(2).says("524288");
    folder.run(&["pause", &id]).ok();
    assert_eq!(folder.run(&["logs", &id]).ok().stdout, "one\ntwo\n");
    assert_eq!(folder.status(&id), "paused", "reading wakes nobody");
    folder.run(&["stop", &id]).exits(1);
    folder.run(&["resume", &id]).ok();
    folder.run(&["stop", &id]).ok();
    wait_for("the end", || folder.run(&["logs", &id]).ok().stdout == "one\ntwo\n");
    folder.run(&["rm", &id]).ok();
    folder.run(&["wait", &id, "--status=terminated"]).ok();
    folder.run(&["logs", &id]).exits(1).says("output is kept with its guest");
}

/// A key file that is lost is named, and comes back when that is asked for; guests live on.
#[test]
fn lost_keys_are_made_anew_when_asked_for() {
    let folder = Folder::new();
    let server = folder.up(&["--driver=process,simulated"]);
    let id = folder.create(&["--template=process", "--", "sleep", "600"]);
    let data = folder.path().join("plimsoll-data");
    let other = folder.run(&["keys", "create", "--role=operator"]).ok().stdout.trim().to_owned();
    std::fs::write(folder.path().join("other.key"), other).unwrap();
    std::fs::copy(data.join("operator.key"), folder.path().join("old.key")).unwrap();
    std::fs::copy(data.join("host.key"), folder.path().join("old-host.key")).unwrap();
    assert!(server.stop().success());

    let up = ["up", "--listen=127.0.0.1:0", "--agent-listen=127.0.0.1:0", "--host-name=h1"];
    for file in ["operator.key", "host.key"] {
        let aside = folder.path().join("aside");
        std::fs::rename(data.join(file), &aside).unwrap();
        folder.run(&up).exits(1).says(file).says("--renew-keys");
        std::fs::rename(aside, data.join(file)).unwrap();
    }
    for file in ["operator.key", "host.key"] {
        std::fs::remove_file(data.join(file)).unwrap();
    }
    let _server = folder.up(&["--driver=process,simulated", "--renew-keys", "--end-guests"]);
    assert_eq!(folder.status(&id), "running");
    folder.run(&["hosts", "--key-file=old.key"]).exits(1).says("unauthenticated");
    folder.run(&["hosts", "--key-file=other.key"]).ok();
    folder.run(&["hosts", "--key-file=old-host.key"]).exits(1).says("forbidden");
    let events = folder.run(&["events", "--type=key.renewed", "--json"]).ok().json();
    let roles: Vec<_> = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (event["data"]["role"].clone(), event["data"]["revoked"].clone()))
        .collect();
    assert_eq!(roles, [("operator".into(), true.into()), ("host".into(), false.into())]);
    folder.run(&["rm", &id]).ok();
}
