//! Finds out by trying what `runsc` can do on this machine.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::{GvisorConfig, bake, rootfs, tool};
use crate::driver::folder::Guests;
use crate::driver::launch::call;
use crate::driver::shared::blocking;
use crate::driver::{Abilities, Fault, Unavailable, describe};
use crate::shim::plan::{Answer, Call};
use crate::shim::runsc::{TALK, find_program};

/// Longest run of the trial's command.
const TRIAL_LIMIT: Duration = Duration::from_secs(20);

/// A `runsc` that was seen to work.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub program: PathBuf,
    pub flags: Vec<String>,
    pub version: String,
    /// The root file system of templates that bring none.
    pub rootfs: PathBuf,
    pub abilities: Abilities,
}

/// Tries everything that guests will need: a boot, a checkpoint, a restore, a command inside.
pub(super) async fn try_out(guests: &Guests, config: &GvisorConfig) -> Result<Setup, Unavailable> {
    let no = |why: String| Err(Unavailable(why));
    if !rustix::process::geteuid().is_root() {
        return no("sandboxes that can be written out need root".to_owned());
    }
    let Some(program) = find_program(&config.runsc, std::env::var_os("PATH")) else {
        return no(format!("{} is not installed", config.runsc.display()));
    };
    let (data, busybox) = (guests.data().to_owned(), config.busybox.clone());
    let own_program = program.clone();
    let asked = blocking(move || {
        let talk = data.join(".runsc-talk");
        let ask = |word: &str, step| {
            let mut command = Command::new(&own_program);
            command.arg(word).env_clear();
            tool::run(command, step, &talk, TALK)
        };
        let version = ask("--version", "the question for runsc's version")?;
        let flags = ask("flags", "the question for runsc's flags")?;
        // The answers are all that was wanted of the file.
        let _ = std::fs::remove_file(&talk);
        let version = version.lines().next().unwrap_or_default().trim().to_owned();
        Ok((version, flags, rootfs::built_in(&data, &busybox)?))
    });
    let (version, known_flags, rootfs) = match asked.await {
        Ok(asked) => asked,
        Err(fault) => return no(describe(&fault)),
    };
    // Guests share no writable file: what one writes stays in its own memory.
    let overlay =
        if known_flags.contains("-overlay2") { "--overlay2=root:memory" } else { "--overlay" };
    let platforms = match &config.platform {
        Some(platform) => vec![Some(platform.clone())],
        None => vec![None, Some("systrap".to_owned()), Some("ptrace".to_owned())],
    };
    let mut failures = Vec::new();
    for platform in platforms {
        let mut flags = vec![overlay.to_owned()];
        flags.extend(platform.iter().map(|name| format!("--platform={name}")));
        let mut setup = Setup {
            program: program.clone(),
            flags,
            version: version.clone(),
            rootfs: rootfs.clone(),
            abilities: Abilities {
                version: version.clone(),
                checkpoint: false,
                notes: vec![format!("platform {}", platform.as_deref().unwrap_or("by default"))],
            },
        };
        match run_trial(guests, &setup, None).await {
            Err(fault) => failures.push(describe(&fault)),
            Ok(()) => {
                let written = async {
                    let key = bake::key(&setup, &setup.rootfs)?;
                    let image = bake::image_of(guests, &setup, &setup.rootfs, &key).await?;
                    run_trial(guests, &setup, Some(image)).await
                };
                let written = written.await;
                match written {
                    Ok(()) => setup.abilities.checkpoint = true,
                    Err(fault) => {
                        setup.abilities.notes.push(format!("no checkpoints: {}", describe(&fault)));
                    }
                }
                return Ok(setup);
            }
        }
    }
    no(format!("no sandbox would start: {}", failures.join("; ")))
}

/// Boots or restores a sandbox, runs one command in it, and ends it.
async fn run_trial(guests: &Guests, setup: &Setup, image: Option<PathBuf>) -> Result<(), Fault> {
    const STEP: &str = "the trial of a sandbox";
    let (dir, _) = bake::boot(guests, setup, &setup.rootfs, "trial", image).await?;
    let timeout_millis = u64::try_from(TRIAL_LIMIT.as_millis()).unwrap_or(u64::MAX);
    let exec = Call::Exec { command: vec!["true".to_owned()], timeout_millis };
    let answer = call(&dir, &exec, STEP, TRIAL_LIMIT * 2).await;
    bake::discard(&dir).await?;
    match answer? {
        Some(Answer::Exec(output)) if output.exit_code == 0 => Ok(()),
        Some(Answer::Exec(output)) => Err(Fault::step(STEP, output.stderr)),
        Some(Answer::Failed { detail }) => Err(Fault::step(STEP, detail)),
        _ => Err(Fault::step(STEP, "the sandbox ended")),
    }
}
