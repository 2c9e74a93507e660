//! The root file system of templates that bring none: one static busybox and its names.

use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use super::tool;
use crate::driver::Fault;
use crate::shim::files::remove_folder;

/// Longest run of `busybox --list`; milliseconds.
const LIST_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);
/// Type of the program header that names a dynamic loader.
const PT_INTERP: u32 = 3;

/// Whether a file is a 64-bit ELF program that needs no dynamic loader; `None` when it is no such
/// program, or is cut short.
fn is_static(bytes: &[u8]) -> Option<bool> {
    let number = |at: usize, length: usize| -> Option<usize> {
        let field = bytes.get(at..at.checked_add(length)?)?;
        let mut wide = [0; 8];
        wide[..length].copy_from_slice(field);
        usize::try_from(u64::from_le_bytes(wide)).ok()
    };
    // 64-bit, little-endian.
    if bytes.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for header in 0..count {
        let at = start.checked_add(header.checked_mul(size)?)?;
        if number(at, 4)? == PT_INTERP as usize {
            return Some(false);
        }
    }
    Some(true)
}

/// Makes the root file system below `data`, once for each busybox; comes back with its folder.
pub(super) fn built_in(data: &Path, busybox: &Path) -> Result<PathBuf, Fault> {
    let step = "the built-in root file system";
    let program = std::fs::read(busybox)
        .map_err(|error| Fault::step(step, format_args!("{}: {error}", busybox.display())))?;
    if is_static(&program) != Some(true) {
        let why = format_args!("{} is no static program", busybox.display());
        return Err(Fault::step(step, why));
    }
    let digest: String =
        Sha256::digest(&program).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let parent = data.join("rootfs");
    let ready = parent.join(format!("busybox-{digest}"));
    if ready.is_dir() {
        return Ok(ready);
    }
    let staged = parent.join(format!(".new-{digest}"));
    let fail = || Fault::io(format!("make {}", ready.display()));
    remove_folder(&staged).map_err(fail())?;
    std::fs::create_dir_all(&staged).map_err(fail())?;
    let mut list = Command::new(busybox);
    list.arg("--list").env_clear();
    let names = tool::run(list, step, &parent.join("list"), LIST_LIMIT)?;
    fill(&staged, &program, &names).map_err(fail())?;
    match std::fs::rename(&staged, &ready) {
        // Another agent on the same folder was faster.
        Err(_) if ready.is_dir() => {}
        done => done.map_err(fail())?,
    }
    Ok(ready)
}

fn fill(root: &Path, program: &[u8], names: &str) -> io::Result<()> {
    let folders =
        ["bin", "dev", "etc", "home", "proc", "root", "run/plimsoll", "sys", "tmp", "usr", "var"];
    for folder in folders {
        std::fs::create_dir_all(root.join(folder))?;
    }
    std::fs::set_permissions(root.join("tmp"), std::fs::Permissions::from_mode(0o1777))?;
    let busybox = root.join("bin/busybox");
    std::fs::write(&busybox, program)?;
    std::fs::set_permissions(&busybox, std::fs::Permissions::from_mode(0o755))?;
    for name in names.lines().filter(|name| !name.is_empty() && !name.contains('/')) {
        if name != "busybox" {
            symlink("busybox", root.join("bin").join(name))?;
        }
    }
    symlink("../bin", root.join("usr/bin"))?;
    symlink("bin", root.join("sbin"))?;
    std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    std::fs::write(root.join("etc/group"), "root:x:0:\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_static_program_is_one() {
        assert_eq!(is_static(b""), None);
        assert_eq!(is_static(b"#!/bin/sh\n"), None);
        assert_eq!(is_static(&[0x7f, b'E', b'L', b'F', 2, 1, 0, 0]), None, "cut short");
        // This very test is linked dynamically with the C library of the machine.
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_static(&own), Some(!cfg!(target_env = "gnu")));
        let mut many = own[..64].to_vec();
        many[56..58].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(is_static(&many), None, "headers beyond the end");
    }
}
