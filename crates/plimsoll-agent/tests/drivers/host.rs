//! A host of one test: its folder, its drivers, and what must be gone in the end.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_agent::driver::{
    CGROUP_PARENT, ExecOutput, ExecRequest, GuestDriver, GuestName, Guests, ShimCommand,
};
use plimsoll_agent::probe::Hierarchies;
use plimsoll_types::{
    Driver, GuestSpec, Mib, ReserveRule, SandboxId, TemplateName, TenantId, Vcpus,
};

/// Longer than anything here takes, on a machine shared with much else.
pub const LONG: Duration = Duration::from_secs(60);

/// Whether a test can run here. Where it must (`CI=true`) its absence is a failure.
pub fn can(condition: bool, why: &str) -> bool {
    if !condition {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "cannot run: {why}");
        eprintln!("SKIPPED: {why}");
    }
    condition
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Waits for a condition, and says what it waited for when it does not come.
pub async fn wait_for(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition().await {
        assert!(Instant::now() < deadline, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One host's folder. Whatever a failed test leaves there is ended.
pub struct Host {
    folder: tempfile::TempDir,
    pub control_groups: bool,
}

impl Host {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        Self { folder, control_groups: true }
    }

    pub fn without_control_groups() -> Self {
        let mut host = Self::new();
        host.control_groups = false;
        host
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn guests(&self) -> Arc<Guests> {
        Guests::open(&self.data(), shim(), self.control_groups).unwrap()
    }

    /// Processes whose command line or folder names this host's folder.
    pub fn processes(&self) -> Vec<String> {
        let folder = self.folder.path();
        std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| {
                let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
                let line = std::fs::read(entry.path().join("cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                let cwd = std::fs::read_link(entry.path().join("cwd")).ok()?;
                let own = line.contains(folder.to_str()?) || cwd.starts_with(folder);
                (own && pid != std::process::id() as i32).then(|| format!("{pid} {line}"))
            })
            .collect()
    }

    /// This host's control groups whose names begin so.
    fn control_groups(&self, prefix: &str) -> Vec<PathBuf> {
        let machine = Hierarchies::detect().unwrap();
        machine
            .unified
            .iter()
            .chain(machine.v1.values())
            .filter_map(|mount| std::fs::read_dir(mount.join(CGROUP_PARENT)).ok())
            .flat_map(|entries| entries.flatten())
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            .map(|entry| entry.path())
            .collect()
    }

    pub fn control_groups_of(&self, name: &GuestName) -> Vec<PathBuf> {
        self.control_groups(&self.guests().tagged(name))
    }

    /// Nothing of this guest is left on the machine.
    pub async fn assert_gone(&self, name: &GuestName) {
        wait_for("the end of all processes", async || self.processes().is_empty()).await;
        let groups = self.control_groups(&self.guests().tagged(""));
        assert_eq!(groups, Vec::<PathBuf>::new(), "{name}");
        let left: Vec<_> = std::fs::read_dir(self.data().join("guests"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert!(left.is_empty(), "{left:?}");
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        assert!(!mounts.contains(self.folder.path().to_str().unwrap()), "{mounts}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for process in self.processes() {
            let pid = process.split(' ').next().and_then(|pid| pid.parse().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        for group in self.control_groups(&self.guests().tagged("")) {
            while std::fs::remove_dir(&group).is_err() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

pub fn shim() -> ShimCommand {
    ShimCommand { program: env!("CARGO_BIN_EXE_plimsoll-guest-shim").into(), words: Vec::new() }
}

pub fn spec(driver: Driver, number: u128, command: &[&str]) -> GuestSpec {
    GuestSpec {
        id: SandboxId(number),
        attempt: 1,
        tenant: TenantId::new("t").unwrap(),
        template: TemplateName::new("shell").unwrap(),
        driver,
        memory_mib: Mib(256),
        overhead_mib: Mib(64),
        vcpus: Vcpus(1),
        stateful: false,
        preemptible: true,
        priority: 0,
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        env: BTreeMap::from([("GREETING".to_owned(), "it's a secret".to_owned())]),
        rootfs: None,
        baked: false,
        fork_of: None,
        counted: BTreeMap::new(),
        reserve: ReserveRule::default(),
        settle_seconds: 3,
        decay_seconds: 120,
    }
}

pub fn shell(script: &str, timeout: Duration) -> ExecRequest {
    ExecRequest { command: ["sh", "-c", script].map(str::to_owned).to_vec(), timeout }
}

pub async fn run(driver: &dyn GuestDriver, name: &GuestName, script: &str) -> ExecOutput {
    driver.exec(name, shell(script, LONG)).await.unwrap()
}

/// The number in a file that a guest keeps counting in.
pub fn count(path: &Path) -> u64 {
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
