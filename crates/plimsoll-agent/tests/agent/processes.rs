//! Real processes, and an agent that is killed.

use std::path::Path;
use std::process::Stdio;

use plimsoll_api::GuestExec;
use plimsoll_types::{Driver, GuestSpec, GuestStatus, HostOp, HostOutcome, PauseKind, SandboxId};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::rig::{AGENT_PROGRAM, Cell, PATIENCE, end, spec, start};

/// An agent as a program of its own, so that it can be killed.
pub struct Program {
    child: Child,
}

impl Program {
    async fn start(cell: &mut Cell, data: &Path) -> Self {
        Self::start_with(cell, data, "process").await
    }

    pub async fn start_with(cell: &mut Cell, data: &Path, driver: &str) -> Self {
        let before = cell.registrations().len();
        let mut child = Command::new(AGENT_PROGRAM)
            .args([
                format!("cell={}", cell.url),
                format!("data={}", data.display()),
                format!("driver={driver}"),
                "control-groups=false".to_owned(),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        tokio::time::timeout(PATIENCE, BufReader::new(stdout).read_line(&mut line))
            .await
            .expect("the agent says where it listens")
            .unwrap();
        cell.registration(before + 1).await;
        cell.heartbeat("a heartbeat", |heartbeat| heartbeat.memory_mib_admittable.is_some()).await;
        Self { child }
    }

    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

async fn exec(cell: &Cell, id: u128, line: &str) -> (Option<i32>, String) {
    exec_in(cell, id, 1, line).await
}

async fn exec_in(cell: &Cell, id: u128, attempt: u32, line: &str) -> (Option<i32>, String) {
    let exec = GuestExec {
        id: SandboxId(id),
        attempt,
        command: vec!["sh".to_owned(), "-c".to_owned(), line.to_owned()],
        timeout_seconds: 30,
    };
    let answer = cell.client.exec(&cell.target(), &exec, PATIENCE).await.unwrap();
    (answer.exit_code, answer.stdout)
}

#[tokio::test]
async fn kill_nine_of_the_agent_harms_no_guest() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Program::start(&mut cell, data.path()).await;
    let mut guest = spec(1, Driver::Process);
    guest.command = vec!["sh".into(), "-c".into(), "echo hello; exec sleep 600".into()];
    guest.env.insert("GREETING".to_owned(), "good morning".to_owned());
    assert_eq!(cell.send(start(guest)).await, HostOutcome::Done);
    let said = exec(&cell, 1, "echo $GREETING; echo $$ > mark; exit 3").await;
    assert_eq!(said, (Some(3), "good morning\n".to_owned()));
    let (_, mark) = exec(&cell, 1, "cat mark").await;
    let seen = cell.capacity().await.seen_through;

    agent.kill().await;
    let agent = Program::start(&mut cell, data.path()).await;
    let report = cell.capacity().await;
    assert!(report.complete);
    assert_eq!((report.seen_through, report.incarnation), (seen, Some(2)));
    let guest = cell.guest(1).await.unwrap();
    assert_eq!(guest.status, GuestStatus::Running, "{guest:?}");
    assert!(guest.resident_mib.is_some());
    let (_, after) = exec(&cell, 1, "cat mark").await;
    assert_eq!(after, mark, "the very same guest");

    let (id, attempt, kind) = (SandboxId(1), 1, PauseKind::Keep);
    assert_eq!(cell.send(HostOp::Pause { id, attempt, kind }).await, HostOutcome::Done);
    // Killed once more, with a frozen guest.
    agent.kill().await;
    let agent = Program::start(&mut cell, data.path()).await;
    assert_eq!(cell.guest(1).await.unwrap().status, GuestStatus::Paused);
    assert_eq!(cell.send(HostOp::Resume { id, attempt }).await, HostOutcome::Done);
    assert_eq!(exec(&cell, 1, "true").await.0, Some(0));
    assert_eq!(cell.send(end(1)).await, HostOutcome::Done);
    assert_eq!(cell.guest(1).await, None);
    agent.kill().await;

    // Nothing comes back.
    let agent = Program::start(&mut cell, data.path()).await;
    assert_eq!(cell.guest(1).await, None);
    agent.kill().await;
}

#[tokio::test]
async fn a_guest_that_ends_while_there_is_no_agent_is_reported_with_its_code() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Program::start(&mut cell, data.path()).await;
    let mut guest = spec(1, Driver::Process);
    let line = "while [ ! -e go ]; do sleep 0.05; done; exit 7";
    guest.command = vec!["sh".into(), "-c".into(), line.into()];
    assert_eq!(cell.send(start(guest)).await, HostOutcome::Done);
    let (_, folder) = exec(&cell, 1, "pwd").await;
    agent.kill().await;
    std::fs::write(Path::new(folder.trim()).join("go"), "").unwrap();
    let agent = Program::start(&mut cell, data.path()).await;
    cell.heartbeat("its exit code", |heartbeat| {
        let guests = heartbeat.guests.as_deref().unwrap_or_default();
        guests.iter().any(|guest| guest.exit_code == Some(7))
    })
    .await;
    assert_eq!(cell.send(end(1)).await, HostOutcome::Done);
    agent.kill().await;
}

#[tokio::test]
async fn a_stopped_guest_goes_on_under_its_attempt_with_its_disk() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Program::start(&mut cell, data.path()).await;
    assert_eq!(cell.send(start(spec(1, Driver::Process))).await, HostOutcome::Done);
    let stop = || HostOp::Stop { id: SandboxId(1), attempt: 1 };
    let resume = || HostOp::Resume { id: SandboxId(1), attempt: 1 };
    for turn in 0..2 {
        assert_eq!(exec(&cell, 1, "echo kept >> file").await.0, Some(0));
        assert_eq!(cell.send(stop()).await, HostOutcome::Done);
        assert_eq!(cell.send(resume()).await, HostOutcome::Done);
        assert_eq!(exec(&cell, 1, "cat file").await.1, "kept\n".repeat(turn + 1));
    }
    let guest = cell.guest(1).await.unwrap();
    assert_eq!((guest.status, guest.attempt), (GuestStatus::Running, Some(1)));
    // The agent's own end in between changes nothing.
    assert_eq!(cell.send(stop()).await, HostOutcome::Done);
    agent.kill().await;
    let agent = Program::start(&mut cell, data.path()).await;
    assert_eq!(cell.send(resume()).await, HostOutcome::Done);
    assert_eq!(exec(&cell, 1, "cat file").await.1, "kept\nkept\n");
    let end = HostOp::End { id: SandboxId(1), attempt: 1 };
    assert_eq!(cell.send(end).await, HostOutcome::Done);
    let left: Vec<_> = std::fs::read_dir(data.path().join("guests")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    agent.kill().await;
}

#[tokio::test]
async fn a_stopped_guest_starts_again_with_its_disk() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Program::start(&mut cell, data.path()).await;
    let first = spec(1, Driver::Process);
    assert_eq!(cell.send(start(first.clone())).await, HostOutcome::Done);
    assert_eq!(exec(&cell, 1, "echo kept > file").await.0, Some(0));
    let stop = HostOp::Stop { id: SandboxId(1), attempt: 1 };
    assert_eq!(cell.send(stop).await, HostOutcome::Done);
    let guest = cell.guest(1).await.unwrap();
    assert_eq!((guest.status, guest.charge_mib), (GuestStatus::Exited, Some(0)));
    // The agent's own end in between changes nothing.
    agent.kill().await;
    let agent = Program::start(&mut cell, data.path()).await;

    let second = GuestSpec { attempt: 2, ..first };
    assert_eq!(cell.send(start(second)).await, HostOutcome::Done);
    assert_eq!(exec_in(&cell, 1, 2, "cat file").await, (Some(0), "kept\n".to_owned()));
    let guest = cell.guest(1).await.unwrap();
    assert_eq!((guest.status, guest.attempt), (GuestStatus::Running, Some(2)));
    agent.kill().await;
    let agent = Program::start(&mut cell, data.path()).await;
    assert_eq!(exec_in(&cell, 1, 2, "cat file").await, (Some(0), "kept\n".to_owned()));
    let end = HostOp::End { id: SandboxId(1), attempt: 2 };
    assert_eq!(cell.send(end).await, HostOutcome::Done);
    let left: Vec<_> = std::fs::read_dir(data.path().join("guests")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    agent.kill().await;
}
