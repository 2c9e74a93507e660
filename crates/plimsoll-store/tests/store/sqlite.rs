//! What only a file can be asked: who holds it, who may read it, and what it does when it is
//! foreign, damaged, cut short, or the disk is full.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use plimsoll_engine::Change;
use plimsoll_engine::rows::{DecisionRow, Rows};
use plimsoll_store::{
    EventQuery, LoadLimits, Retention, SqliteSettings, SqliteStore, Store, StoreError,
};
use plimsoll_types::{DecisionId, Millis, SandboxStatus};
use rusqlite::Connection;

use crate::backend::{NOW, Sqlite, leader, rows};
use crate::make::Make;

fn word(outcome: Result<SqliteStore, StoreError>) -> (&'static str, String) {
    let error = outcome.map(drop).unwrap_err();
    (error.word(), error.to_string())
}

/// A batch with rows in several tables, told apart by its number.
fn batch(number: u128) -> Vec<Change> {
    let mut make = Make::new(number as u64);
    (0..20)
        .flat_map(|row| {
            let mut sandbox = make.sandbox(row);
            (sandbox.status, sandbox.ended_at) = (SandboxStatus::Running, None);
            let id = number * 20 + row + 1;
            [Change::Sandbox(Box::new(sandbox)), Change::Event(make.event(id))]
        })
        .collect()
}

fn events(store: &dyn Store) -> usize {
    let page = store.reader().events(&EventQuery { limit: 1_000, ..Default::default() }).unwrap();
    assert!(!page.more);
    page.items.len()
}

#[test]
fn a_second_store_on_one_file_is_refused_at_once_and_harms_nothing() {
    let mut backend = Sqlite::new();
    let (mut store, lease) = leader(&mut backend);
    store.commit(&lease, &batch(0)).unwrap();
    let begun = Instant::now();
    let error = backend.try_open().unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(1));
    let wanted = format!("{} is held by process {}", backend.path().display(), std::process::id());
    assert_eq!(error.to_string(), wanted);
    assert!(matches!(error, StoreError::Held { until: None, .. }));
    store.commit(&lease, &batch(1)).unwrap();
    drop(store);
    let (mut store, lease) = leader(&mut backend);
    assert_eq!(lease.epoch, 2);
    assert_eq!(rows(&mut *store, &lease).sandboxes.len(), 20);
}

#[test]
fn every_file_is_its_owners_alone() {
    let mut backend = Sqlite::new();
    let modes = |folder: &Path| -> Vec<(String, u32)> {
        let mut modes: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
                (entry.file_name().into_string().unwrap(), mode)
            })
            .collect();
        modes.sort();
        modes
    };
    let folder = backend.path().parent().unwrap().to_owned();
    let wanted: Vec<(String, u32)> =
        ["", "-lock", "-shm", "-wal"].map(|end| (format!("plimsoll.db{end}"), 0o600)).to_vec();
    let (mut store, lease) = leader(&mut backend);
    store.commit(&lease, &batch(0)).unwrap();
    assert_eq!(modes(&folder), wanted);
    drop(store);
    // A copy that came with wider rights is narrowed.
    fs::set_permissions(backend.path(), fs::Permissions::from_mode(0o644)).unwrap();
    let (mut store, lease) = leader(&mut backend);
    store.commit(&lease, &batch(1)).unwrap();
    assert_eq!(modes(&folder), wanted);
}

#[test]
fn what_is_no_database_of_ours_is_refused_and_left_as_it_was() {
    let backend = Sqlite::new();
    let path = backend.path();

    fs::write(&path, "a letter to a friend, longer than any header would have to be; ".repeat(20))
        .unwrap();
    let before = fs::read(&path).unwrap();
    let (kind, text) = word(backend.try_open());
    assert_eq!(kind, "corrupt", "{text}");
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    assert_eq!(fs::read(&path).unwrap(), before);

    fs::remove_file(&path).unwrap();
    let foreign = Connection::open(&path).unwrap();
    foreign.execute_batch("CREATE TABLE recipes (name TEXT); PRAGMA user_version = 1;").unwrap();
    drop(foreign);
    let before = fs::read(&path).unwrap();
    let (kind, text) = word(backend.try_open());
    assert_eq!(kind, "corrupt", "{text}");
    assert!(text.contains("some other program"), "{text}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_newer_schema_is_refused_by_name_and_number() {
    let mut backend = Sqlite::new();
    drop(leader(&mut backend));
    let file = Connection::open(backend.path()).unwrap();
    let known: i64 = file.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    file.pragma_update(None, "user_version", known + 1).unwrap();
    drop(file);
    let error = backend.try_open().unwrap_err();
    assert!(
        matches!(&error, StoreError::TooNew { what, found, known: newest }
            if *what == backend.path().to_str().unwrap()
                && *found == known + 1 && *newest == known),
        "{error}"
    );
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let settings = SqliteSettings::default;
    let missing = Path::new("/nonexistent-folder/plimsoll.db");
    let (kind, text) = word(SqliteStore::open(missing, settings()));
    assert_eq!(kind, "io");
    assert!(text.contains("/nonexistent-folder/plimsoll.db"), "{text}");
    // Nobody can make a file there, root neither.
    let (kind, text) = word(SqliteStore::open(Path::new("/proc/plimsoll.db"), settings()));
    assert_eq!(kind, "io");
    assert!(text.contains("/proc/plimsoll.db"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let (kind, text) = word(SqliteStore::open(folder.path(), settings()));
    assert_eq!(kind, "io");
    assert!(text.contains(folder.path().to_str().unwrap()), "{text}");
}

#[test]
fn a_relative_name_that_looks_like_an_address_is_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file:odd?name=1&mode=memory.db");
    let mut store = SqliteStore::open(&path, SqliteSettings::default()).unwrap();
    store.acquire("a", NOW).unwrap();
    drop(store);
    assert!(path.exists());
}

/// Fills a store until it says that it is full, and holds it to what it said before.
fn fill(store: &mut SqliteStore) {
    let lease = store.acquire("a", NOW).unwrap();
    let mut written = 0;
    let error = loop {
        match store.commit(&lease, &batch(written)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100_000, "it never got full");
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert!(!error.outcome_unknown());
    // Nothing of the failed batch is there, and everything of those before.
    let last = store.reader().last_event().unwrap().unwrap();
    assert_eq!(last.0, written * 20);
    let found = store.load(&lease, NOW, &LoadLimits::default()).unwrap();
    let wanted: Vec<_> = batch(written - 1)
        .into_iter()
        .filter_map(|change| match change {
            Change::Sandbox(row) => Some(*row),
            _ => None,
        })
        .collect();
    assert_eq!(found.sandboxes, wanted);
}

#[test]
fn a_database_at_its_bound_is_full_and_takes_rows_again_once_pruned() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plimsoll.db");
    let settings = SqliteSettings { bytes_max: Some(1 << 20), ..SqliteSettings::default() };
    let mut store = SqliteStore::open(&path, settings).unwrap();
    fill(&mut store);
    let lease = store.acquire("b", NOW).unwrap();
    let later = NOW + Millis::from_seconds(30 * 24 * 3600);
    assert!(store.prune(&lease, later, &Retention::default()).unwrap().rows > 0);
    store.commit(&lease, &batch(7)).unwrap();
}

#[test]
fn a_full_disk_is_told_and_leaves_nothing_half_done() {
    // A disk of its own takes a mount, which takes root.
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: mounting a small file system takes root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
        .arg(folder.path())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("not run: mounting a small file system is not allowed here");
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let path = folder.path().join("plimsoll.db");
        let mut store = SqliteStore::open(&path, SqliteSettings::default()).unwrap();
        fill(&mut store);
        drop(store);
        // A restart on the full disk brings everything back.
        let mut store = SqliteStore::open(&path, SqliteSettings::default()).unwrap();
        assert!(store.reader().last_event().unwrap().is_some());
        drop(store.acquire("b", NOW));
    });
    let unmounted = Command::new("umount").arg(folder.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_damaged_page_is_told_and_never_read_as_rows() {
    let mut backend = Sqlite::new();
    let (mut store, lease) = leader(&mut backend);
    for number in 0..30 {
        store.commit(&lease, &batch(number)).unwrap();
    }
    let whole = rows(&mut *store, &lease);
    drop(store);
    let pristine = fs::read(backend.path()).unwrap();
    let pages = pristine.len() / 4096;
    let mut told = 0;
    for page in 1..pages {
        let file = fs::OpenOptions::new().write(true).open(backend.path()).unwrap();
        file.write_all_at(&[0xa5; 512], page as u64 * 4096).unwrap();
        drop(file);
        let outcome = backend.try_open().and_then(|mut store| {
            let lease = store.acquire("a", NOW)?;
            store.load(&lease, NOW, &LoadLimits::default())
        });
        match outcome {
            Ok(found) => assert_eq!(found, whole, "page {page}"),
            Err(StoreError::Corrupt { .. }) => told += 1,
            Err(error) => panic!("page {page}: {error}"),
        }
        for end in ["-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{end}", backend.path().display()));
        }
        fs::write(backend.path(), &pristine).unwrap();
    }
    assert!(told > 0, "no page of {pages} mattered");
}

#[test]
fn a_value_that_does_not_belong_is_named_without_its_text() {
    let mut backend = Sqlite::new();
    let edits = [
        ("sandboxes", "status = 'sleeping-with-a-secret'", "sandboxes.status of row sbx_"),
        ("sandboxes", "memory_mib = 'a secret'", "sandboxes.memory_mib of row sbx_"),
        ("sandboxes", "spec = '{\"env\": {\"KEY\": \"a secret\"'", "sandboxes.spec of row sbx_"),
        ("sandboxes", "spec = '{\"a secret\": 1}'", "sandboxes.spec of row sbx_"),
        ("sandboxes", "attempt = -1", "sandboxes.attempt of row sbx_"),
        ("sandboxes", "tenant = NULL", "sandboxes.tenant of row sbx_"),
        ("sandboxes", "measured = 2", "sandboxes.measured of row sbx_"),
    ];
    for (table, edit, place) in edits {
        let (mut store, lease) = leader(&mut backend);
        store.commit(&lease, &batch(0)).unwrap();
        drop(store);
        let file = Connection::open(backend.path()).unwrap();
        file.execute(&format!("UPDATE {table} SET {edit}"), []).unwrap();
        drop(file);
        let (mut store, lease) = leader(&mut backend);
        let error = store.load(&lease, NOW, &LoadLimits::default()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{text}");
        assert!(text.contains(place), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
}

#[test]
fn a_log_that_is_cut_anywhere_holds_whole_batches() {
    const BATCHES: u128 = 12;
    let mut backend = Sqlite::new();
    let (mut store, lease) = leader(&mut backend);
    // A copy of the files while the store is open is what a crash of the machine leaves.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("plimsoll.db");
    let log = folder.path().join("plimsoll.db-wal");
    let source = |end: &str| format!("{}{end}", backend.path().display());
    let mut lengths = Vec::new();
    for number in 0..BATCHES {
        store.commit(&lease, &batch(number)).unwrap();
        lengths.push(fs::metadata(source("-wal")).unwrap().len());
    }
    let (whole, database) = (fs::read(source("-wal")).unwrap(), fs::read(source("")).unwrap());
    assert_eq!(*lengths.last().unwrap(), whole.len() as u64);
    let attempts = (0..60).map(|step| whole.len() * step / 59);
    for (cut, torn) in attempts.flat_map(|cut| [(cut, false), (cut, true)]) {
        fs::write(&copy, &database).unwrap();
        let mut kept = whole[..cut].to_vec();
        if torn {
            // The file has its length, but its last blocks never reached the disk.
            kept.resize(whole.len(), 0);
        }
        fs::write(&log, kept).unwrap();
        let acknowledged = lengths.iter().filter(|length| **length <= cut as u64).count();
        let Ok(mut store) = SqliteStore::open(&copy, SqliteSettings::default()) else {
            panic!("cut at {cut} of {}", whole.len());
        };
        let lease = store.acquire("a", NOW).unwrap();
        let seen = events(&store);
        assert_eq!(seen, acknowledged * 20, "cut at {cut}");
        let found: Rows = store.load(&lease, NOW, &LoadLimits::default()).unwrap();
        assert_eq!(found.sandboxes.len(), if acknowledged > 0 { 20 } else { 0 });
        drop(store);
        for end in ["-wal", "-shm", "-lock"] {
            let _ = fs::remove_file(format!("{}{end}", copy.display()));
        }
    }
}

#[test]
fn an_operator_can_read_it_and_sees_no_secret_in_the_readable_views() {
    let mut backend = Sqlite::new();
    let (mut store, lease) = leader(&mut backend);
    let mut make = Make::new(1);
    let mut sandbox = make.sandbox(1);
    (sandbox.created_at, sandbox.ended_at) = (NOW + Millis(7), None);
    sandbox.status = SandboxStatus::Running;
    let mut host = make.host("h");
    host.secret = Some("hush".to_owned());
    let mut decision = make.decision(1);
    decision.at = NOW;
    let batch = [
        Change::Sandbox(Box::new(sandbox.clone())),
        Change::Host(host),
        Change::Decision(decision.into()),
        Change::Key(make.key(1)),
        Change::Endpoint(make.endpoint(1)),
        make.policy("p"),
        Change::Template(make.template("t")),
    ];
    store.commit(&lease, &batch).unwrap();
    // While the store is open, as an operator would.
    let operator = Connection::open(backend.path()).unwrap();
    let (id, created, status): (String, String, String) = operator
        .query_row("SELECT id, created_at, status FROM readable_sandboxes", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .unwrap();
    assert_eq!(id, sandbox.id.to_string());
    assert_eq!(created, "2027-01-15T08:00:00.007Z");
    assert_eq!(status, "running");
    let views: Vec<String> = operator
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY name")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(views.len(), 20, "{views:?}");
    for view in views {
        let mut statement = operator.prepare(&format!("SELECT * FROM {view}")).unwrap();
        let columns: Vec<String> =
            statement.column_names().into_iter().map(str::to_owned).collect();
        for column in &columns {
            assert!(
                !column.ends_with("_millis")
                    || column == "duration_millis"
                    || column.ends_with("cpu_millis")
                    || column.ends_with("mib_millis"),
                "{view}.{column}"
            );
            assert!(!["secret", "secrets", "env", "spec"].contains(&column.as_str()), "{view}");
        }
        let mut rows = statement.query([]).unwrap();
        while rows.next().unwrap().is_some() {}
    }
}

#[test]
fn another_programs_lock_is_waited_for_within_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plimsoll.db");
    let wait = Duration::from_millis(50);
    let settings = SqliteSettings { busy_timeout: wait, ..SqliteSettings::default() };
    let mut store = SqliteStore::open(&path, settings).unwrap();
    let lease = store.acquire("a", NOW).unwrap();
    store.commit(&lease, &batch(0)).unwrap();

    let operator = Connection::open(&path).unwrap();
    operator.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = Instant::now();
    let error = store.commit(&lease, &batch(1)).unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }), "{error}");
    assert!(!error.outcome_unknown());
    assert!(begun.elapsed() >= wait);
    // Readers are not held up, and see what was there before.
    assert_eq!(events(&store), 20);

    operator.execute_batch("ROLLBACK").unwrap();
    store.commit(&lease, &batch(1)).unwrap();
    assert_eq!(events(&store), 40);
}

#[test]
fn the_log_stays_bounded_while_batches_keep_coming() {
    let mut backend = Sqlite::new();
    let (mut store, lease) = leader(&mut backend);
    let mut make = Make::new(1);
    let row = make.decision(0);
    let (mut written, mut longest) = (0_u64, 0);
    // Some 100 MiB in sum.
    for number in 0..220_u128 {
        let batch: Vec<Change> = (0..1_500)
            .map(|place| {
                let id = DecisionId(number * 1_500 + place);
                Change::Decision(DecisionRow { id, ..row.clone() }.into())
            })
            .collect();
        store.commit(&lease, &batch).unwrap();
        let status = store.reader().status().unwrap();
        longest = longest.max(status.log_bytes.unwrap());
        written = written.max(status.bytes.unwrap());
    }
    assert!(written > 80 << 20, "{written} bytes are no load");
    assert!(longest < 128 << 20, "the log grew to {longest} bytes");
}
