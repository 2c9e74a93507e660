//! Starting, calling and ending the binary.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use plimsoll_api::Secret;
use plimsoll_client::{Client, ClientConfig, RetryPolicy};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longest wait for anything that takes milliseconds on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// The binary: the one that `PLIMSOLL_BIN` names, else the one built beside this test.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("PLIMSOLL_BIN") {
        return fs::canonicalize(path).expect("PLIMSOLL_BIN names a file");
    }
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("plimsoll");
    assert!(path.exists(), "{} is missing: cargo build --bin plimsoll", path.display());
    path
}

/// Says that something is not tested here; a failure where nothing may be skipped.
pub fn skip(what: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "may not be skipped in CI: {what}");
    eprintln!("SKIPPED: {what}");
}

/// A folder in which a test runs the binary. Ends whatever runs from it.
pub struct Folder {
    dir: TempDir,
}

impl Folder {
    pub fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("plimsoll-it-").tempdir().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The binary with these words, in this folder, without settings of whoever runs the tests.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.current_dir(self.path()).args(words).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PLIMSOLL_") {
                command.env_remove(name);
            }
        }
        command
    }

    /// Runs the binary to its end.
    pub fn run(&self, words: &[&str]) -> Done {
        Done::of(self.command(words).output().unwrap(), words)
    }

    /// Starts a server, and waits until it has written `address` anew.
    pub fn serve(&self, words: &[&str], address: &str) -> Server {
        let address = self.path().join(address);
        let _ = fs::remove_file(&address);
        let log =
            fs::File::options().create(true).append(true).open(self.path().join("log")).unwrap();
        let mut command = self.command(words);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let mut server = Server { child: command.spawn().unwrap(), log: self.path().join("log") };
        wait_for("the address", || {
            server.assert_alive();
            fs::read_to_string(&address).is_ok_and(|text| text.ends_with('\n'))
        });
        server
    }

    /// `plimsoll up` on free ports, with these words more; waits until its host is fresh.
    pub fn up(&self, words: &[&str]) -> Server {
        let fixed = ["up", "--listen=127.0.0.1:0", "--agent-listen=127.0.0.1:0", "--host-name=h1"];
        let words: Vec<&str> = fixed.iter().chain(words).copied().collect();
        let mut server = self.serve(&words, "plimsoll-data/address");
        wait_for("the banner", || {
            server.assert_alive();
            let done = self.run(&["hosts", "show", "h1", "--json", "--deadline=0"]);
            done.code == 0 && done.json()["status"] == "fresh"
        });
        // Templates of the first start are made before the banner is printed.
        wait_for("templates", || {
            self.run(&["templates", "--json"]).json()["items"]
                .as_array()
                .is_some_and(|items| items.len() >= 2)
        });
        server
    }

    /// Where the cell is.
    pub fn url(&self) -> String {
        let address = self.path().join("plimsoll-data/address");
        format!("http://{}", fs::read_to_string(address).unwrap().trim())
    }

    /// A client with a key of the data folder, without patience.
    pub fn client(&self, key: &str) -> Client {
        let data = self.path().join("plimsoll-data");
        let key = fs::read_to_string(data.join(key)).unwrap();
        let mut config = ClientConfig::new([self.url()]).with_key(Secret::new(key.trim()));
        config.retry = RetryPolicy::none();
        Client::new(config).unwrap()
    }

    pub fn tenant(&self) -> Client {
        self.client("tenant-default.key")
    }

    pub fn operator(&self) -> Client {
        self.client("operator.key")
    }

    /// Creates a sandbox with the command line and gives its id.
    pub fn create(&self, words: &[&str]) -> String {
        let words: Vec<&str> = std::iter::once(&"create").chain(words).copied().collect();
        self.run(&words).ok().stdout.trim().to_owned()
    }

    /// Where a sandbox stands.
    pub fn status(&self, id: &str) -> String {
        self.run(&["show", id, "--json"]).ok().json()["status"].as_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let mine = fs::canonicalize(self.path()).unwrap_or_else(|_| self.path().to_owned());
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            let found = processes_of(&mine);
            if found.is_empty() {
                break;
            }
            for pid in found {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(LOOK);
        }
        if std::thread::panicking()
            && let Ok(log) = fs::read_to_string(self.path().join("log"))
        {
            eprintln!("--- log of the servers\n{log}");
        }
    }
}

/// Processes whose command line or working folder lies in a folder.
pub fn processes_of(folder: &Path) -> Vec<Pid> {
    let own = std::process::id().to_string();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let text = folder.to_string_lossy().into_owned();
    entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let pid: i32 = name.parse().ok()?;
            let at = Path::new("/proc").join(&name);
            let mut line = Vec::new();
            fs::File::open(at.join("cmdline")).ok()?.read_to_end(&mut line).ok()?;
            let by_line = String::from_utf8_lossy(&line).contains(&text);
            let by_place = fs::read_link(at.join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
            let is_zombie = line.is_empty() && !by_place;
            ((by_line || by_place) && !is_zombie && name != own).then(|| Pid::from_raw(pid))?
        })
        .collect()
}

/// A server at work; killed when dropped.
pub struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// `kill -9`, and waits for the end.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and waits for that.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let mut ended = None;
        wait_for("the server's end", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }

    pub fn assert_alive(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            panic!("the server has ended with {status}:\n{log}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that has ended.
#[derive(Debug)]
#[expect(dead_code, reason = "`words` is for the message of a failed assertion")]
pub struct Done {
    words: String,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    fn of(output: Output, words: &[&str]) -> Self {
        Self {
            words: words.join(" "),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts that it was done.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    /// Asserts the exit code.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Asserts what it says.
    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.stderr.contains(text) || self.stdout.contains(text), "no {text:?}: {self:#?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Waits for a condition, with a deadline.
#[track_caller]
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(LOOK);
    }
}

/// The same for a condition that has to be asked for.
pub async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < until, "waited in vain for {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// The value of one series of a metrics page.
pub fn metric(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        (name == series).then(|| value.parse().ok())?
    })
}
