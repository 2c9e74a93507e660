//! What drivers share whose guests have a folder and a shim.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_types::{Driver, GuestSpec, GuestStatus, bounds};
use rustix::process::Signal;

use super::adopt::settle;
use super::folder::{GuestDir, GuestName, Guests};
use super::launch::{EXEC_MARGIN, START_LIMIT, call, start_shim, take_lock};
use super::look::{self, Look, look, wait_for_shim};
use super::{
    ChangeError, EXEC_TIMEOUT_MAX, EndError, ExecError, ExecOutput, ExecRequest, Fault, FinalUse,
    GuestState, LookError, StartError, Started, Usage,
};
use crate::probe::{MemoryMethod, Resident};
use crate::shim::ExitRecord;
use crate::shim::files::{Outlives, remove_folder, replace_json};
use crate::shim::image;
use crate::shim::plan::{Answer, Call, LaunchPlan, unix_millis};

/// How long a stopped guest may take to end by itself: what container engines commonly give.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(10);
/// How long an ended guest may take: it loses its disk anyway, so only a moment to say goodbye.
pub(crate) const END_GRACE: Duration = Duration::from_secs(2);
/// How long killed processes may take to die, and a shim to write down that they did.
const DYING: Duration = Duration::from_secs(15);

/// Between two looks at a guest that was asked to end, or that starts.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How a guest is asked to end before it is made to.
pub(crate) enum Polite<'a> {
    /// Not at all.
    No,
    /// By this call, and given this long.
    Yes(&'a (dyn Fn(&Look) + Send + Sync), Duration),
}

/// Guests of one driver.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub kind: Driver,
    pub guests: Arc<Guests>,
}

/// Runs file and process work where it may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Fault::step("work on files", error)),
    }
}

impl Shared {
    /// Looks at a guest of this driver's.
    pub(crate) async fn look(&self, name: &GuestName) -> Result<Option<Look>, Fault> {
        let (dir, kind) = (self.guests.dir(name), self.kind);
        blocking(move || look(&dir, kind)).await
    }

    /// Answers a start of a name that exists: well, where it runs.
    pub(crate) async fn started_before(
        &self,
        name: &GuestName,
    ) -> Result<Option<Started>, StartError> {
        // An earlier agent's start may still be under way.
        let deadline = Instant::now() + START_LIMIT;
        let look = loop {
            let Some(look) = self.look(name).await? else { return Ok(None) };
            let under_way = look.shim_lives && look.guest.status == GuestStatus::Starting;
            if !under_way || Instant::now() >= deadline {
                break look;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        };
        let status = look.guest.status;
        match look.guest.started_at_unix_millis {
            Some(started_at_unix_millis) if status == GuestStatus::Running => {
                Ok(Some(Started { started_at_unix_millis, notes: Vec::new() }))
            }
            _ => Err(StartError::Used { name: *name, status }),
        }
    }

    /// Puts the folder of a guest that has ended out of the way, so that it can be started again
    /// under its name; `None` where there is none that has ended.
    pub(crate) async fn set_aside(&self, name: &GuestName) -> Result<Option<GuestDir>, Fault> {
        let ended = self
            .look(name)
            .await?
            .is_some_and(|look| look.guest.status == GuestStatus::Exited && !look.shim_lives);
        if !ended {
            return Ok(None);
        }
        let (guests, own_name) = (Arc::clone(&self.guests), *name);
        let aside = move || guests.set_aside(&own_name).map_err(Fault::io("set the folder aside"));
        let former = blocking(aside).await?;
        // Its counters begin anew.
        self.guests.forget(name);
        Ok(Some(former))
    }

    /// After a start under the same name: the former folder goes, or comes back if there is no new
    /// one.
    pub(crate) async fn settle_former(&self, name: &GuestName, former: GuestDir) {
        let dir = self.guests.dir(name);
        let settled = blocking(move || {
            if dir.path().exists() {
                remove_folder(former.path()).map_err(Fault::io("remove the former folder"))
            } else {
                std::fs::rename(former.path(), dir.path())
                    .map_err(Fault::io("bring the folder back"))
            }
        });
        if let Err(error) = settled.await {
            // The next start of the agent does it.
            tracing::warn!(guest = %name, %error, "a former folder was left");
        }
    }

    /// Makes a guest's folder and starts its shim. `prepare` fills the folder and plans the
    /// launch; should anything fail, nothing is left. `disk` is the work folder of an earlier
    /// attempt: the guest takes it over, and gives it back when it does not start.
    pub(crate) async fn launch(
        &self,
        spec: &GuestSpec,
        limit: Duration,
        disk: Option<PathBuf>,
        prepare: impl FnOnce(&GuestDir, &GuestDir) -> Result<LaunchPlan, Fault> + Send + 'static,
    ) -> Result<Started, Fault> {
        let name = GuestName::of(spec);
        let (guests, own_spec, own_disk) = (Arc::clone(&self.guests), spec.clone(), disk.clone());
        let (dir, lock) = blocking(move || {
            let staged = guests.stage(&name).map_err(Fault::io("make the guest's folder"))?;
            let filled = fill(&guests, &staged, &name, &own_spec, prepare);
            if filled.is_err() {
                // The reason is what counts; what stays is cleared at the agent's next start.
                let _ = remove_folder(staged.path());
            }
            let (dir, lock) = filled?;
            if let Some(disk) = own_disk {
                std::fs::rename(disk, dir.work_path()).map_err(Fault::io("take over the disk"))?;
            }
            Ok((dir, lock))
        })
        .await?;
        let started = start_shim(&self.guests, &dir, lock, limit).await;
        if started.is_err()
            && let Err(error) = self.end_and(&name, Polite::No, disk).await
        {
            tracing::warn!(guest = %name, %error, "a failed start left something behind");
        }
        started
    }

    /// Where a guest stands; one whose shim was killed is settled first.
    pub(crate) async fn status(&self, name: &GuestName) -> Result<GuestState, LookError> {
        let gone = || LookError::NotFound(*name);
        let look = self.look(name).await?.ok_or_else(gone)?;
        if !look.unsettled {
            return Ok(look.guest);
        }
        let _turn = self.guests.turn(&name.to_string()).await;
        let (dir, kind) = (self.guests.dir(name), self.kind);
        blocking(move || settle(&dir, kind)).await?;
        Ok(self.look(name).await?.ok_or_else(gone)?.guest)
    }

    /// What a change needs to know of its guest.
    pub(crate) async fn find(&self, name: &GuestName) -> Result<(GuestDir, Look), ChangeError> {
        match self.look(name).await? {
            Some(look) => Ok((self.guests.dir(name), look)),
            None => Err(ChangeError::NotFound(*name)),
        }
    }

    pub(crate) async fn stop(
        &self,
        name: &GuestName,
        polite: Polite<'_>,
    ) -> Result<(), ChangeError> {
        let (dir, look) = self.find(name).await?;
        if dir.exit().map_err(Fault::io("read the guest's end"))?.is_some() {
            return Ok(());
        }
        let look = ask_to_end(&dir, self.kind, look, polite).await?;
        blocking(move || {
            let left = look.tree().kill(DYING);
            if !left.is_empty() {
                return Err(Fault::step("the stop", format_args!("{} processes live", left.len())));
            }
            if !wait_for_shim(&dir, DYING).map_err(Fault::io("wait for the shim"))? {
                return Err(Fault::timeout("the stop", DYING));
            }
            remove_checkpoints(&dir)?;
            if dir.exit().map_err(Fault::io("read the guest's end"))?.is_none() {
                // Nobody was there to see its end: it was written out, or had lost its shim.
                let cpu_millis_total = look.checkpoint.map_or(0, |image| image.cpu_millis_total);
                let record = ExitRecord {
                    code: None,
                    out_of_memory: false,
                    reason: "stopped".to_owned(),
                    cpu_millis_total,
                    at_unix_millis: unix_millis(),
                };
                replace_json(&dir.exit_path(), &record, Outlives::Machine)
                    .map_err(Fault::io("write the guest's end"))?;
            }
            Ok(())
        })
        .await?;
        Ok(())
    }

    pub(crate) async fn end(
        &self,
        name: &GuestName,
        polite: Polite<'_>,
    ) -> Result<Option<FinalUse>, EndError> {
        self.end_and(name, polite, None).await
    }

    /// Ends a guest, and first gives its disk to whom it was taken from.
    async fn end_and(
        &self,
        name: &GuestName,
        polite: Polite<'_>,
        disk: Option<PathBuf>,
    ) -> Result<Option<FinalUse>, EndError> {
        let dir = self.guests.dir(name);
        let Some(look) = self.look(name).await? else {
            self.guests.forget(name);
            return Ok(None);
        };
        let (kind, own_name) = (self.kind, *name);
        let look = ask_to_end(&dir, self.kind, look, polite).await?;
        let guests = Arc::clone(&self.guests);
        let (left, used) = blocking(move || {
            let tree = look.tree();
            let mut left = tree.kill(DYING).len();
            if left == 0 && !wait_for_shim(&dir, DYING).map_err(Fault::io("wait for the shim"))? {
                // It has nothing to wait for any more, and is stuck.
                if let Some(state) = &look.state {
                    state.shim.signal(Signal::KILL);
                }
                left = usize::from(
                    !wait_for_shim(&dir, DYING).map_err(Fault::io("wait for the shim"))?,
                );
            }
            let mut used = None;
            if left == 0 {
                // The shim has written the last counters down; nothing of it can use any more.
                let ended = look::look(&dir, kind)?;
                used = ended.map(|look| final_use(&guests, &own_name, &look));
                tree.cgroup.remove().map_err(Fault::io("remove the guest's control group"))?;
                if let Some(disk) = disk {
                    std::fs::rename(dir.work_path(), disk)
                        .map_err(Fault::io("give back the disk"))?;
                }
                guests.remove(&dir).map_err(Fault::io("remove the guest's folder"))?;
            }
            Ok((left, used))
        })
        .await?;
        if left > 0 {
            return Err(EndError::Survivors { name: *name, count: left });
        }
        self.guests.forget(name);
        Ok(used)
    }

    pub(crate) async fn exec(
        &self,
        name: &GuestName,
        request: ExecRequest,
    ) -> Result<ExecOutput, ExecError> {
        check_exec(&request)?;
        let Some(look) = self.look(name).await? else { return Err(ExecError::NotFound(*name)) };
        let status = look.guest.status;
        if status != GuestStatus::Running {
            return Err(ExecError::State { name: *name, status });
        }
        const STEP: &str = "exec";
        if !look.shim_lives {
            return Err(Fault::step(STEP, "the guest's shim was killed").into());
        }
        let timeout_millis = u64::try_from(request.timeout.as_millis()).unwrap_or(u64::MAX);
        let exec = Call::Exec { command: request.command, timeout_millis };
        let limit = request.timeout + EXEC_MARGIN;
        match call(&self.guests.dir(name), &exec, STEP, limit).await? {
            Some(Answer::Exec(output)) => Ok(output),
            Some(Answer::Failed { detail }) => Err(Fault::step(STEP, detail).into()),
            Some(Answer::Checkpointed) => Err(Fault::step(STEP, "another call's answer").into()),
            None => Err(Fault::step(STEP, "the guest ended").into()),
        }
    }

    pub(crate) async fn usage(&self, name: &GuestName) -> Result<Usage, LookError> {
        let (guests, dir, kind) = (Arc::clone(&self.guests), self.guests.dir(name), self.kind);
        let own_name = *name;
        let usage = blocking(move || {
            let Some(look) = look(&dir, kind)? else { return Ok(None) };
            Ok(Some(measure(&guests, &own_name, &look)))
        })
        .await?;
        usage.ok_or(LookError::NotFound(*name))
    }
}

fn fill(
    guests: &Guests,
    staged: &GuestDir,
    name: &GuestName,
    spec: &GuestSpec,
    prepare: impl FnOnce(&GuestDir, &GuestDir) -> Result<LaunchPlan, Fault>,
) -> Result<(GuestDir, std::fs::File), Fault> {
    let dir = guests.dir(name);
    replace_json(&staged.spec_path(), spec, Outlives::Processes)
        .map_err(Fault::io("write the guest's specification"))?;
    let plan = prepare(staged, &dir)?;
    let settled = replace_json(&staged.plan_path(), &plan, Outlives::Processes)
        .map_err(Fault::io("write the guest's plan"))
        .and_then(|()| take_lock(staged))
        .and_then(|lock| {
            let dir = guests.settle(staged, name).map_err(Fault::io("name the guest's folder"))?;
            Ok((dir, lock))
        });
    if settled.is_err() {
        let _ = plan.cgroup.remove();
    }
    settled
}

/// Asks a running guest to end and waits for its grace.
async fn ask_to_end(
    dir: &GuestDir,
    kind: Driver,
    look_before: Look,
    polite: Polite<'_>,
) -> Result<Look, Fault> {
    // A frozen guest cannot hear.
    let Polite::Yes(ask, grace) = polite else { return Ok(look_before) };
    if look_before.guest.status != GuestStatus::Running {
        return Ok(look_before);
    }
    ask(&look_before);
    let deadline = Instant::now() + grace;
    loop {
        let own = dir.clone();
        let over = blocking(move || {
            let Some(look) = look(&own, kind)? else { return Ok(true) };
            Ok(look.guest.status == GuestStatus::Exited)
        })
        .await?;
        if over || Instant::now() >= deadline {
            return Ok(look_before);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Removes whatever image a guest has.
pub(crate) fn remove_checkpoints(dir: &GuestDir) -> Result<(), Fault> {
    for name in [image::CHECKPOINT, image::STAGED, image::CONSUMED] {
        remove_folder(&dir.path().join(name)).map_err(Fault::io(format!("remove {name}")))?;
    }
    Ok(())
}

pub(crate) fn check_exec(request: &ExecRequest) -> Result<(), ExecError> {
    let invalid = |field, why: String| Err(ExecError::Invalid { field, why });
    let words = request.command.len();
    if words == 0 || words > bounds::COMMAND_WORDS_MAX {
        return invalid("command", format!("1 to {} words", bounds::COMMAND_WORDS_MAX));
    }
    let bytes: usize = request.command.iter().map(String::len).sum();
    if bytes > bounds::COMMAND_BYTES_MAX {
        return invalid("command", format!("at most {} bytes", bounds::COMMAND_BYTES_MAX));
    }
    if request.command.iter().any(|word| word.contains('\0')) || request.command[0].is_empty() {
        return invalid("command", "a program's name, and no zero byte in any word".to_owned());
    }
    if request.timeout.is_zero() || request.timeout > EXEC_TIMEOUT_MAX {
        let most = EXEC_TIMEOUT_MAX.as_secs();
        return invalid("timeout_seconds", format!("more than 0 and at most {most}"));
    }
    Ok(())
}

/// The last counters of a guest of which no process is left.
fn final_use(guests: &Guests, name: &GuestName, look: &Look) -> FinalUse {
    let recorded = look.guest.exit.as_ref().map(|exit| exit.cpu_millis_total);
    let written_out = look.checkpoint.as_ref().map(|image| image.cpu_millis_total);
    // Without a shim nobody wrote them down; the group still counts what ran in it.
    let base = look.state.as_ref().map_or(0, |state| state.cpu_base_millis);
    let group = look.tree().cgroup.cpu_millis().map_or(0, |millis| base.saturating_add(millis));
    let last = recorded.max(written_out).unwrap_or(0).max(group);
    FinalUse { cpu_millis_total: guests.cpu_never_falls(name, last), egress_bytes_total: None }
}

fn measure(guests: &Guests, name: &GuestName, look: &Look) -> Usage {
    let nothing = |cpu_millis: u64| Usage {
        // Measured: no process of it is left.
        resident: Ok(Resident { bytes: 0, method: MemoryMethod::Pss }),
        cpu_millis_total: Ok(guests.cpu_never_falls(name, cpu_millis)),
        egress_bytes_total: None,
    };
    if let Some(exit) = &look.guest.exit {
        return nothing(exit.cpu_millis_total);
    }
    if let (false, Some(image)) = (look.shim_lives, &look.checkpoint) {
        return nothing(image.cpu_millis_total);
    }
    let tree = look.tree();
    let base = look.state.as_ref().map_or(0, |state| state.cpu_base_millis);
    let mut scan = || guests.processes();
    Usage {
        resident: tree.resident(&mut scan),
        cpu_millis_total: tree
            .cpu_millis(&mut scan)
            .map(|now| guests.cpu_never_falls(name, base.saturating_add(now))),
        egress_bytes_total: None,
    }
}
