//! The first commands of the README, on real guests.

use crate::rig::{Folder, skip, wait_for};

#[test]
fn a_process_is_created_shown_used_and_ended() {
    let folder = Folder::new();
    let server = folder.up(&["--driver=process", "--heartbeat-millis=500"]);
    let id = folder.create(&[
        "--template",
        "shell",
        "--label",
        "team=ci",
        "--",
        "sh",
        "-c",
        "echo $$ > pid; sleep 600",
    ]);
    assert!(id.starts_with("sbx_"), "{id}");
    let list = folder.run(&["ls", "--json", "--label", "team=ci"]).ok().json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["items"][0]["status"], "running");
    assert_eq!(list["items"][0]["host"], "h1");
    folder.run(&["ls"]).ok().says("running").says("h1");
    folder.run(&["show", &id]).ok().says("512 MiB");

    // The guest's exit code is the command's own.
    let done = folder.run(&["exec", &id, "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    let done = done.exits(7);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", "err\n"));
    let done = folder.run(&["exec", &id, "--json", "--", "sh", "-c", "exit 7"]).ok();
    assert_eq!(done.json()["exit_code"], 7);

    wait_for("a measurement", || {
        folder.run(&["show", &id, "--json"]).ok().json()["measured"] == true
    });
    folder.run(&["explain", "--template", "shell"]).ok().says("admit").says("h1");
    folder.run(&["quota"]).ok().says("1 of 100000");

    // Ctrl-C ends cell and agent, and not the guest: the next `up` finds it.
    let pid = folder.run(&["exec", &id, "--", "cat", "pid"]).ok().stdout;
    assert!(server.stop().success());
    let server = folder.up(&["--driver=process", "--end-guests"]);
    wait_for("the guest", || folder.status(&id) == "running");
    assert_eq!(folder.run(&["exec", &id, "--", "cat", "pid"]).ok().stdout, pid);

    folder.run(&["rm", &id]).ok();
    wait_for("its end", || folder.status(&id) == "terminated");
    folder.run(&["exec", &id, "--", "true"]).exits(1);
    assert!(server.stop().success());
}

#[test]
fn a_gvisor_sandbox_is_paused_to_disk_woken_and_forked() {
    let has = |program: &str| {
        ["/usr/bin", "/bin", "/usr/local/bin"]
            .iter()
            .any(|folder| std::path::Path::new(folder).join(program).exists())
    };
    if !has("runsc") || !has("busybox") {
        skip("gVisor: runsc or a static busybox is missing");
        return;
    }
    let folder = Folder::new();
    let server = folder.up(&["--driver=gvisor,process", "--end-guests", "--heartbeat-millis=500"]);
    let id = folder.create(&[
        "--template",
        "shell",
        "--",
        "sh",
        "-c",
        "echo kept > /tmp/file; sleep 600",
    ]);
    let record = folder.run(&["show", &id, "--json"]).ok().json();
    assert_eq!(record["driver"], "gvisor");
    assert_eq!(folder.run(&["exec", &id, "--", "cat", "/tmp/file"]).ok().stdout, "kept\n");

    folder.run(&["pause", &id]).ok();
    folder.run(&["wait", &id, "--status", "paused"]).ok();
    let record = folder.run(&["show", &id, "--json"]).ok().json();
    assert_eq!((&record["slot_released"], &record["charge_mib"]), (&true.into(), &0.into()));

    // A fork is a guest of its own with the same memory and files.
    let fork = folder.run(&["fork", &id]).ok().stdout.trim().to_owned();
    wait_for("the fork", || folder.status(&fork) == "running");
    assert_eq!(folder.run(&["exec", &fork, "--", "cat", "/tmp/file"]).ok().stdout, "kept\n");

    // A call wakes the paused one.
    assert_eq!(folder.run(&["exec", &id, "--", "cat", "/tmp/file"]).ok().stdout, "kept\n");
    assert_eq!(folder.status(&id), "running");
    folder.run(&["rm", &id, &fork]).ok();
    assert!(server.stop().success());
}
