//! Filling a host until it refuses.

use std::path::Path;
use std::time::Duration;

use plimsoll_types::{RefusalCode, Regime};
use tokio::time::{Instant, sleep};

use super::report::Fill;
use super::{DECAY_SECONDS, HEADROOM_MIB, OFFERED_MIB, SETTLE_SECONDS, Stage};
use crate::failure::Failure;

/// Memory of each guest.
const GUEST_MIB: u64 = 128;
/// Guests that are enough to show it, since each is a real process with its shim.
pub(super) const GUESTS_MAX: u64 = 40;
/// How long to go on after the first refusal: until the first reserves have decayed.
const AFTER_REFUSAL: Duration = Duration::from_secs(DECAY_SECONDS + SETTLE_SECONDS + 2);
/// Between two creates that were refused.
const PAUSE: Duration = Duration::from_millis(500);

/// Fills one host.
///
/// # Errors
/// When something else goes wrong than a refusal for lack of room.
pub(super) async fn run(data: &Path, regime: Regime) -> Result<Fill, Failure> {
    let stage = Stage::set(data, regime).await?;
    let filled = fill(&stage, regime).await;
    stage.strike().await?;
    filled
}

async fn fill(stage: &Stage, regime: Regime) -> Result<Fill, Failure> {
    let mut fill = Fill {
        regime: regime.to_string(),
        budget_mib: OFFERED_MIB - HEADROOM_MIB,
        guest_mib: GUEST_MIB,
        admitted: 0,
        configured_mib: 0,
        resident_mib_max: 0,
        charged_mib: 0,
        charged_mib_max: 0,
        refused: 0,
    };
    let mut until = None;
    while fill.admitted < GUESTS_MAX && until.is_none_or(|until| Instant::now() < until) {
        match stage.create(GUEST_MIB, 0).await {
            Ok(_) => fill.admitted += 1,
            Err(error) if error.code() == Some(RefusalCode::NoCapacity) => {
                fill.refused += 1;
                until.get_or_insert_with(|| Instant::now() + AFTER_REFUSAL);
                sleep(PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
        look(stage, &mut fill).await?;
    }
    // The last guests must be measured, too.
    let until = Instant::now() + Duration::from_secs(SETTLE_SECONDS) + super::REPORT;
    while Instant::now() < until {
        let sandboxes = stage.tenant.sandboxes(&running()).await?.items;
        look(stage, &mut fill).await?;
        if sandboxes.iter().all(|sandbox| sandbox.measured) {
            break;
        }
        sleep(PAUSE).await;
    }
    Ok(fill)
}

fn running() -> plimsoll_api::ListSandboxes {
    plimsoll_api::ListSandboxes {
        statuses: vec![plimsoll_types::SandboxStatus::Running],
        ..plimsoll_api::ListSandboxes::default()
    }
}

/// Takes in what the cell knows of the host now.
async fn look(stage: &Stage, fill: &mut Fill) -> Result<(), Failure> {
    let host = stage.pair.operator.host(&stage.pair.host).await?;
    fill.configured_mib = host.configured_mib;
    fill.charged_mib = host.charged_mib;
    fill.charged_mib_max = fill.charged_mib_max.max(host.charged_mib);
    fill.resident_mib_max = fill.resident_mib_max.max(host.resident_mib);
    Ok(())
}
