//! The store under a disk that is full.

use std::process::Command;

use crate::rig::{Folder, skip, wait_for};

/// A small file system of its own; unmounted when dropped.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(at: &std::path::Path) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let words = ["-t", "tmpfs", "-o", "size=3m", "plimsoll-it"];
        let done = Command::new("mount").args(words).arg(at).output().ok()?;
        done.status.success().then(|| Self(at.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// What was not written down was not promised: a full disk refuses, loses nothing, and is got over.
#[test]
fn a_full_disk_refuses_and_is_got_over() {
    let folder = Folder::new();
    let Some(small) = Small::mount(&folder.path().join("plimsoll-data")) else {
        skip("a full disk: no file system can be mounted here");
        return;
    };
    let ballast = small.0.join("ballast");
    let mut server = folder.serve(&["cell", "--listen=127.0.0.1:0"], "plimsoll-data/address");
    wait_for("the cell", || folder.run(&["status", "--deadline=0"]).code == 0);
    let kept = folder.run(&["plans", "create", "kept", "concurrency.sandboxes.limit=7"]);
    kept.ok();
    let _ = std::fs::write(&ballast, vec![0_u8; 3 << 20]);

    let mut made = Vec::new();
    let mut refused = None;
    for number in 0..2_000 {
        let name = format!("p{number}");
        let done = folder.run(&["plans", "create", &name, "--deadline=0"]);
        if done.code != 0 {
            refused = Some(done);
            break;
        }
        made.push(name);
    }
    let refused = refused.expect("the disk is never full");
    refused.exits(75).says("store_unavailable");
    server.assert_alive();
    // What is there can be read all the while.
    let answers = |words: &[&str]| folder.run(&[words, &["--deadline=0"]].concat()).code == 0;
    let questions: [&[&str]; 8] = [
        &["plans", "show", "kept"],
        &["ls", "--all"],
        &["pools"],
        &["hosts"],
        &["quota"],
        &["events"],
        &["decisions"],
        &["status"],
    ];
    wait_for("answers from a cell that can keep nothing", || {
        questions.iter().all(|words| answers(words)) && !answers(&["plans", "create", "no"])
    });

    std::fs::remove_file(&ballast).unwrap();
    wait_for("the cell to decide again", || {
        folder.run(&["plans", "create", "after", "--deadline=0"]).code == 0
    });
    let plans = folder.run(&["plans", "--json"]).ok().json();
    let names: Vec<&str> = plans["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|plan| plan["id"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"kept") && names.contains(&"after"), "{names:?}");
    assert!(made.iter().all(|name| names.contains(&name.as_str())), "{made:?} in {names:?}");
    drop(server);
    drop(small);
}
