//! Finds guests again after the agent's start.

use std::sync::Arc;

use plimsoll_types::{Driver, GuestStatus};

use super::folder::{GuestDir, Guests};
use super::gvisor::tool::run;
use super::look::{self, Look, is_half_restored, is_staged};
use super::shared::{Shared, blocking};
use super::tree::GuestTree;
use super::{Adopted, Fault, Found, describe};
use crate::probe::ProcessId;
use crate::shim::files::{Outlives, remove_folder, replace_json};
use crate::shim::image;
use crate::shim::runsc::TALK;

/// How long processes without an owner may take to die.
const DYING: std::time::Duration = std::time::Duration::from_secs(5);

/// Finds the guests of one driver. Guests of other drivers are left to those.
pub(crate) async fn adopt(shared: &Shared) -> Result<Found, Fault> {
    let (guests, kind) = (Arc::clone(&shared.guests), shared.kind);
    blocking(move || find(&guests, kind)).await
}

fn find(guests: &Guests, kind: Driver) -> Result<Found, Fault> {
    let clear = guests.may_clear();
    if clear {
        guests.clear_remains().map_err(Fault::io("clear what earlier removals left"))?;
    }
    let (names, others) = guests.list().map_err(Fault::io("list the guests"))?;
    let mut found = Found::default();
    for other in others {
        found.broken.push((other, "no guest's name".to_owned()));
    }
    for name in &names {
        let dir = guests.dir(name);
        let spec = match dir.spec() {
            Ok(Some(spec)) if spec.driver != kind => continue,
            Ok(Some(spec)) => Box::new(spec),
            Ok(None) => {
                found.broken.push((name.to_string(), "no specification".to_owned()));
                continue;
            }
            Err(error) => {
                found.broken.push((name.to_string(), error.to_string()));
                continue;
            }
        };
        let state = settle(&dir, kind).and_then(|()| look::look(&dir, kind));
        match state {
            // There is nothing to take over: the host knows of the start that never came about, and
            // has this folder removed, or what it was to take over go on as it was.
            Ok(Some(look)) if look.never_began() => {}
            Ok(Some(look)) => {
                found.guests.push(Adopted { name: *name, spec, state: look.guest });
            }
            // Ended meanwhile.
            Ok(None) => {}
            Err(fault) => found.broken.push((name.to_string(), describe(&fault))),
        }
    }
    if clear {
        clear_groups(guests, &names)?;
    }
    Ok(found)
}

/// Finishes or undoes what was cut short when the guest's shim was killed.
pub(crate) fn settle(dir: &GuestDir, kind: Driver) -> Result<(), Fault> {
    let Some(look) = look::look(dir, kind)? else { return Ok(()) };
    if look.shim_lives || dir.exit().map_err(Fault::io("read the guest's end"))?.is_some() {
        return Ok(());
    }
    if kind == Driver::Gvisor {
        settle_sandbox(dir, &look)?;
    }
    let Some(look) = look::look(dir, kind)? else { return Ok(()) };
    if look.guest.status == GuestStatus::Exited {
        // Its first process is gone, and with it the guest; nothing of it may go on.
        look.tree().kill(DYING);
        let _ = look.tree().cgroup.remove();
        if let Some(exit) = look.guest.exit.as_ref().filter(|_| !look.never_began()) {
            replace_json(&dir.exit_path(), exit, Outlives::Machine)
                .map_err(Fault::io("write the guest's end"))?;
        }
    }
    Ok(())
}

fn settle_sandbox(dir: &GuestDir, look: &Look) -> Result<(), Fault> {
    let io = || Fault::io("settle a checkpoint");
    let folder = dir.path();
    let tree = look.tree();
    if look.checkpoint.is_some() {
        // Sealed: what may be left of the sandbox is frozen, and its state is the checkpoint's.
        return end_remains(&tree);
    }
    if is_half_restored(look, dir) {
        // A restore was cut short. The guest was told to nobody as running, so it goes back to
        // where it was; what a restored sandbox may have done since is little, and lost.
        end_remains(&tree)?;
        return image::put_back(folder).map_err(io());
    }
    let staged = folder.join(image::STAGED);
    if !is_staged(look, dir) {
        // Of an earlier boot: it may be cut short anywhere, and is no checkpoint.
        return remove_folder(&staged).map_err(io());
    }
    // A checkpoint was cut short before its seal. Once begun, the sandbox saves by itself and is
    // condemned: the image, when nobody writes it any more, is then all there is of the guest.
    // Should the sandbox itself have been killed while it saved, a restore will say so.
    super::gvisor::wait_for_image(&staged)?;
    let written =
        std::fs::metadata(staged.join(image::IMAGE_FILE)).is_ok_and(|file| file.len() > 0);
    let main = look.state.as_ref().and_then(|state| state.main);
    let lives = main.is_some_and(ProcessId::is_alive);
    if written {
        let base = look.state.as_ref().map_or(0, |state| state.cpu_base_millis);
        let cpu = tree.cgroup.cpu_millis().unwrap_or(0);
        image::seal(folder, base.saturating_add(cpu)).map_err(io())?;
        return end_remains(&tree);
    }
    // Not begun: the sandbox is whole, and perhaps frozen.
    remove_folder(&staged).map_err(io())?;
    if let Some(sandbox) = look.plan.as_ref().and_then(|plan| plan.sandbox.as_ref())
        && lives
        && !dir.frozen_path().exists()
    {
        let resume = sandbox.runsc.command(&["resume", &sandbox.container]);
        // One that was not frozen yet says no, and runs.
        let _ = run(resume, "the resume", &folder.join("talk.agent"), TALK);
    }
    Ok(())
}

/// Ends what is left of a sandbox whose state is on disk.
fn end_remains(tree: &GuestTree) -> Result<(), Fault> {
    let left = tree.kill(DYING);
    if !left.is_empty() {
        let count = left.len();
        return Err(Fault::step("the end of a sandbox", format_args!("{count} processes live")));
    }
    tree.cgroup.remove().map_err(Fault::io("remove a control group"))
}

/// Ends and removes control groups of this agent's that belong to no guest.
fn clear_groups(
    guests: &Guests,
    names: &std::collections::BTreeSet<super::GuestName>,
) -> Result<(), Fault> {
    let known: std::collections::BTreeSet<String> =
        names.iter().map(|name| guests.tagged(name)).collect();
    for (name, cgroup) in guests.machine().existing(&guests.tagged("")) {
        if known.contains(&name) {
            continue;
        }
        let tree = GuestTree { cgroup, ..GuestTree::default() };
        tree.kill(DYING);
        tree.cgroup.remove().map_err(Fault::io(format!("remove the control group {name}")))?;
    }
    Ok(())
}
