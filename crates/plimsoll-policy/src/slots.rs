//! Who holds a slot of its pool (DESIGN 4.8 and 5).

use plimsoll_types::{Driver, PauseKind, SandboxStatus};

/// Whether a sandbox holds a slot of its pool.
///
/// `slot_released` is set when a checkpointing pause has finished, not when it was asked for, and
/// cleared when a resume or a start takes a slot again. A slot once given back stays given back:
/// stopping or deleting a checkpointed guest takes none.
///
/// ```
/// use plimsoll_policy::slots::holds_slot;
/// use plimsoll_types::SandboxStatus::{Pausing, Paused, Queued};
///
/// assert!(holds_slot(Pausing, false));
/// assert!(holds_slot(Paused, false));
/// assert!(!holds_slot(Paused, true));
/// assert!(!holds_slot(Queued, false));
/// ```
#[must_use]
pub const fn holds_slot(status: SandboxStatus, slot_released: bool) -> bool {
    match status {
        SandboxStatus::Provisioning
        | SandboxStatus::Running
        | SandboxStatus::Pausing
        | SandboxStatus::Resuming => true,
        SandboxStatus::Paused | SandboxStatus::Stopped | SandboxStatus::Terminating => {
            !slot_released
        }
        SandboxStatus::Queued | SandboxStatus::Terminated | SandboxStatus::Failed => false,
    }
}

/// What a pause does once the pool's setting and the guest's driver are put together: `keep` or
/// `checkpoint`, never `driver`.
#[must_use]
pub const fn resolve_pause(pool: PauseKind, driver: Driver) -> PauseKind {
    match pool {
        PauseKind::Driver => driver.pause(),
        PauseKind::Keep | PauseKind::Checkpoint => pool,
    }
}

/// Whether a finished pause of this kind gives the slot back.
///
/// Takes what [`resolve_pause`] gives; an unresolved `driver` frees nothing, the safe side.
#[must_use]
pub const fn frees_slot(resolved: PauseKind) -> bool {
    matches!(resolved, PauseKind::Checkpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_states_holds() {
        use SandboxStatus::{
            Failed, Paused, Pausing, Provisioning, Queued, Resuming, Running, Stopped, Terminated,
            Terminating,
        };
        // (state, holds before its slot was given back, holds after)
        let table = [
            (Queued, false, false),
            (Provisioning, true, true),
            (Running, true, true),
            (Pausing, true, true),
            (Paused, true, false),
            (Resuming, true, true),
            (Stopped, true, false),
            (Terminating, true, false),
            (Terminated, false, false),
            (Failed, false, false),
        ];
        assert_eq!(table.len(), SandboxStatus::ALL.len());
        for (status, kept, released) in table {
            assert_eq!(holds_slot(status, false), kept, "{status}");
            assert_eq!(holds_slot(status, true), released, "{status}");
        }
    }

    #[test]
    fn a_pause_frees_its_slot_only_when_it_leaves_the_host() {
        assert!(frees_slot(resolve_pause(PauseKind::Driver, Driver::Gvisor)));
        assert!(!frees_slot(resolve_pause(PauseKind::Driver, Driver::Process)));
        assert!(!frees_slot(resolve_pause(PauseKind::Keep, Driver::Gvisor)));
        assert!(frees_slot(resolve_pause(PauseKind::Checkpoint, Driver::Process)));
        assert!(!frees_slot(PauseKind::Driver));
    }
}
