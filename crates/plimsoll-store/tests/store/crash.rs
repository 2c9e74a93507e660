//! `kill -9` in mid-commit, over and over: no acknowledged batch is lost, none is torn.
//!
//! The writer is this very test program, started again with an order in its environment. Before
//! each commit it prints the batch's number, and after it the number again as acknowledged.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll_engine::Change;
use plimsoll_store::{EventQuery, Store};
use plimsoll_types::{DecisionId, SandboxStatus};

use crate::backend::{NOW, Sqlite, leader, rows};
use crate::make::Make;

/// Tells the writer which database to write to.
const ORDER: &str = "PLIMSOLL_STORE_TEST_WRITE";

/// Rows of each kind in a batch.
const ROWS: u128 = 40;

/// Not a test of its own: the writer that is killed. Without its order it does nothing.
#[test]
fn writer() {
    let Ok(path) = std::env::var(ORDER) else { return };
    let mut store =
        plimsoll_store::SqliteStore::open(Path::new(&path), Default::default()).unwrap();
    let lease = store.acquire("writer", NOW).unwrap();
    let first = store.reader().last_event().unwrap().map_or(0, |event| event.0 / ROWS);
    let mut out = std::io::stdout().lock();
    for batch in first.. {
        store.commit(&lease, &changes(batch)).unwrap();
        // The pipe's other end is gone once the parent has seen enough.
        if writeln!(out, "acknowledged {batch}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

/// A batch over several tables; sandboxes are written again by every batch.
fn changes(batch: u128) -> Vec<Change> {
    let mut make = Make::new(batch as u64);
    let mut changes = Vec::new();
    for row in 0..ROWS {
        let mut sandbox = make.sandbox(row);
        (sandbox.status, sandbox.ended_at) = (SandboxStatus::Running, None);
        sandbox.fence.number = batch as u64;
        let id = batch * ROWS + row + 1;
        changes.extend([
            Change::Sandbox(Box::new(sandbox)),
            Change::Event(make.event(id)),
            Change::Decision(make.decision(id).into()),
        ]);
    }
    changes
}

#[test]
fn a_killed_writer_loses_no_acknowledged_batch_and_leaves_no_torn_one() {
    let mut backend = Sqlite::new();
    let mut epochs = 0;
    for round in 0..8_u64 {
        let acknowledged = run_and_kill(&backend.path(), Duration::from_millis(37 * round));
        epochs += 1;

        let begun = Instant::now();
        let (mut store, lease) = leader(&mut backend);
        // The lock went with the process: a restart does not wait for anything to run out.
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        epochs += 1;
        assert_eq!(lease.epoch, epochs);

        let events = all_events(&*store);
        assert_eq!(events.len() as u128 % ROWS, 0, "a torn batch");
        let batches = events.len() as u128 / ROWS;
        assert!(batches > acknowledged, "batch {acknowledged} was acknowledged and is lost");
        assert_eq!(events, (1..=batches * ROWS).collect::<Vec<_>>());
        let found = rows(&mut *store, &lease);
        let last: BTreeMap<u64, usize> =
            found.sandboxes.iter().fold(BTreeMap::new(), |mut counts, row| {
                *counts.entry(row.fence.number).or_default() += 1;
                counts
            });
        assert_eq!(last, [(batches as u64 - 1, ROWS as usize)].into(), "a torn batch");
        for id in [1, batches * ROWS] {
            assert!(store.reader().decision(DecisionId(id)).unwrap().is_some());
        }
    }
}

/// Lets a writer work for a while after its first batch, kills it, and says which batch it
/// acknowledged last.
fn run_and_kill(path: &Path, work: Duration) -> u128 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::writer", "--nocapture", "--test-threads=1"])
        .env(ORDER, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last = None;
    let mut begun = None;
    for line in lines.by_ref() {
        if let Some((_, number)) = line.unwrap().split_once("acknowledged ") {
            last = Some(number.parse().unwrap());
            if begun.get_or_insert_with(Instant::now).elapsed() >= work {
                break;
            }
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // What it had acknowledged by then and was still in the pipe. Its last line may be cut.
    for line in lines.map_while(Result::ok) {
        if let Some(number) = line.strip_prefix("acknowledged ")
            && let Ok(number) = number.parse::<u128>()
        {
            last = last.max(Some(number));
        }
    }
    last.expect("the writer acknowledged a batch")
}

fn all_events(store: &dyn Store) -> Vec<u128> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page =
            store.reader().events(&EventQuery { after, tenant: None, limit: 1_000 }).unwrap();
        found.extend(page.items.iter().map(|row| row.id.0));
        after = page.through.or(after);
        if !page.more {
            return found;
        }
    }
}
