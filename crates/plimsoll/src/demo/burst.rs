//! Creates at once, a refusal, and a client that waits.

use std::path::Path;
use std::time::Duration;

use plimsoll_api::{Patch, PoolPatch};
use plimsoll_types::{RefusalCode, Regime, SandboxId};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::report::{Burst, Wait};
use super::{HEADROOM_MIB, OFFERED_MIB, RESERVE_FRACTION_BP, Stage, create, pool};
use crate::failure::Failure;
use crate::show;

/// Creates at once.
const CREATES: u64 = 20;
/// Memory of each.
const GUEST_MIB: u64 = 512;
/// What each reserves.
const RESERVE_MIB: u64 = GUEST_MIB * RESERVE_FRACTION_BP / 10_000;
/// How long a client waits before room is made for it.
const BEFORE_ROOM: Duration = Duration::from_secs(2);
/// Longest that the client waits.
const WAIT_SECONDS: u64 = 30;

/// Fires the burst on a fresh host, then waits on the full one.
///
/// # Errors
/// When something else goes wrong than a refusal for lack of room.
pub(super) async fn run(data: &Path) -> Result<(Burst, Wait), Failure> {
    let stage = Stage::set(data, Regime::WorkingSet).await?;
    let shown = both(&stage).await;
    stage.strike().await?;
    shown
}

async fn both(stage: &Stage) -> Result<(Burst, Wait), Failure> {
    let mut at_once = JoinSet::new();
    for _ in 0..CREATES {
        let client = stage.tenant.clone();
        at_once.spawn(async move { create(&client, GUEST_MIB, 0).await });
    }
    let (mut admitted, mut refused) = (Vec::new(), 0);
    while let Some(done) = at_once.join_next().await {
        match done.map_err(|error| Failure::refused(format!("a create was lost: {error}")))? {
            Ok(id) => admitted.push(id),
            Err(error) if error.code() == Some(RefusalCode::NoCapacity) => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    let host = stage.pair.operator.host(&stage.pair.host).await?;
    let budget_mib = OFFERED_MIB - HEADROOM_MIB;
    let burst = Burst {
        creates: CREATES,
        reserve_mib: RESERVE_MIB,
        budget_mib,
        room_for: budget_mib / RESERVE_MIB,
        admitted: u64::try_from(admitted.len()).unwrap_or(u64::MAX),
        refused,
        charged_mib: host.charged_mib,
    };
    show::say("3 of 3: a client that waits ...");
    let first = admitted.first().copied();
    let first = first.ok_or_else(|| Failure::refused("no create of the burst was admitted"))?;
    Ok((burst, wait(stage, first).await?))
}

/// A create on a full pool: refused at once, then waiting until a guest is ended.
///
/// The pool is given as many slots as are held: memory comes back by itself as reserves decay, a
/// slot only when a guest ends.
async fn wait(stage: &Stage, victim: SandboxId) -> Result<Wait, Failure> {
    let held = stage.pair.operator.host(&stage.pair.host).await?.guests;
    let patch = PoolPatch { limit: Patch::Set(held), ..PoolPatch::default() };
    stage.pair.operator.patch_pool(&pool(), &patch).await?;
    let Err(refusal) = stage.create(GUEST_MIB, 0).await else {
        return Err(Failure::refused("a full pool admitted a guest"));
    };
    let begun = Instant::now();
    let millis = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let freed = async {
        sleep(BEFORE_ROOM).await;
        let freed = millis();
        stage.tenant.delete_sandbox(victim).await.map(|_| freed)
    };
    let (admitted, freed) = tokio::join!(
        async { stage.create(GUEST_MIB, WAIT_SECONDS).await.map(|_| millis()) },
        freed
    );
    Ok(Wait {
        refused_with: refusal.code().map(|code| code.to_string()).unwrap_or_default(),
        retry_after_millis: refusal
            .retry_after()
            .map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        freed_after_millis: freed?,
        admitted_after_millis: admitted?,
    })
}
