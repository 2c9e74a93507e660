//! What a sandbox is made of: its OCI configuration, and the init that waits to become a command.

use std::path::Path;

use plimsoll_types::GuestSpec;
use serde_json::{Value, json};

/// Said by the waiting init when it waits.
pub(crate) const READY: &str = "plimsoll: ready";

/// The first process of a baked image, and of a guest without a command: waits on a pipe of its
/// own for a script, and becomes what that says. A checkpoint interrupts the wait, hence the loop.
/// Without `mkfifo` it sleeps, which serves a guest without a command.
pub(crate) const INIT: &str = "\
umask 077
cd /run/plimsoll && mkfifo go || while :; do sleep 3600; done
echo 'plimsoll: ready'
while [ ! -f become ]; do read -r _ < go; done 2>/dev/null
cd /
. /run/plimsoll/become
";

/// Run beside the waiting init, with the script on its standard input.
pub(crate) const WAKE: &str =
    "umask 077; cd /run/plimsoll && cat > new && mv new become && echo > go";

/// Capabilities of a guest's root, those that container engines give by default. They hold inside
/// the sandbox's own kernel only.
const CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// Most open files of one process in a sandbox.
const OPEN_FILES_MAX: u64 = 65_536;

/// The command that a sandbox boots with.
pub(crate) fn boot_command(command: &[String]) -> Vec<String> {
    if command.is_empty() {
        ["/bin/sh", "-c", INIT].map(str::to_owned).to_vec()
    } else {
        command.to_vec()
    }
}

/// The OCI configuration. `env` is the guest's own; a baked image must be made with none, since
/// every guest made from it would have it.
pub(crate) fn config(
    rootfs: &Path,
    command: &[String],
    env: &std::collections::BTreeMap<String, String>,
    memory_bytes: u64,
) -> Value {
    let mut env = env.clone();
    for (name, value) in [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/root"),
    ] {
        env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    let env: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let capabilities = json!({
        "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES,
    });
    let tmpfs = |path: &str, mode: &str| {
        json!({
            "destination": path, "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "nodev", format!("mode={mode}")],
        })
    };
    let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": boot_command(command),
            "env": env,
            "cwd": "/",
            "capabilities": capabilities,
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "hard": OPEN_FILES_MAX, "soft": OPEN_FILES_MAX}
            ],
            "noNewPrivileges": true,
        },
        // Writable: what is written goes to an overlay in the sandbox's own memory.
        "root": {"path": rootfs, "readonly": false},
        "hostname": "sandbox",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            tmpfs("/tmp", "1777"),
            tmpfs("/run/plimsoll", "0700"),
        ],
        "linux": {
            "namespaces": namespaces,
            "resources": {"memory": {"limit": memory_bytes}},
        },
    })
}

/// What the waiting init becomes for this guest, as a script of the shell; `None` where the shell
/// cannot say it (a variable whose name is no shell name), and for a guest without a command,
/// which goes on waiting.
pub(crate) fn become_script(spec: &GuestSpec) -> Option<String> {
    let mut script = String::new();
    for (name, value) in &spec.env {
        script.push_str(&format!("export {name}={}\n", quote(value)));
    }
    script.push_str("exec");
    for word in &spec.command {
        script.push(' ');
        script.push_str(&quote(word));
    }
    script.push('\n');
    (!spec.command.is_empty() && can_be_woken(spec)).then_some(script)
}

/// Whether a waiting init can become this guest.
pub(crate) fn can_be_woken(spec: &GuestSpec) -> bool {
    spec.env.keys().all(|name| {
        !name.starts_with(|first: char| first.is_ascii_digit())
            && !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

/// A word that the shell takes as it is.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_gives_back_every_word_as_it_was() {
        let words = ["plain", "", "a b", "it's", "$HOME `x` \\ \"", "new\nline", "*", "-n", "é"];
        for word in words {
            let said = std::process::Command::new("/bin/sh")
                .arg("-c")
                .arg(format!("printf %s {}", quote(word)))
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), word);
        }
    }

    #[test]
    fn a_baked_image_holds_nobodys_environment() {
        let config = config(Path::new("/r"), &[], &Default::default(), 1 << 20);
        let env = config["process"]["env"].as_array().unwrap();
        assert_eq!(env.len(), 2);
        assert_eq!(config["process"]["args"][2], INIT);
        assert!(INIT.contains(READY));
    }
}
