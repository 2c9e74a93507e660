//! Ten ways at once against one cap: creates, forks, reservations and batches (R5).

use plimsoll_api::{
    CreateSandbox, ForkSandbox, QuotaView, ReservationBatch, ReserveRequest, TenantPatch,
};
use plimsoll_client::{Client, CreateOptions, Error};
use plimsoll_types::{RefusalCode, ReservationId, SandboxId};
use tokio::task::JoinSet;

use crate::rig::{Folder, wait_until};

/// Repetitions where `PLIMSOLL_IT_ROUNDS` does not say: some ten seconds.
const ROUNDS: u64 = 12;
/// What the tenant may hold beyond what it holds between rounds.
const ROOM: u64 = 5;
/// Memory of each guest.
const MIB: u64 = 16;

/// What a call was given.
enum Given {
    Sandbox(SandboxId),
    Reservations(Vec<ReservationId>),
    Nothing(RefusalCode),
}

/// Which kinds of calls a round makes; ten in all.
const MIXES: [[Kind; 10]; 5] = {
    use Kind::{Batch, Create, Fork, Reserve};
    [
        [Create; 10],
        [Fork; 10],
        [Reserve; 10],
        [Batch; 10],
        [Create, Fork, Reserve, Batch, Create, Fork, Reserve, Batch, Create, Fork],
    ]
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Create,
    Fork,
    Reserve,
    /// Two at once, or none.
    Batch,
}

fn small() -> CreateSandbox {
    let mut body = CreateSandbox::new("sleeper".parse().unwrap());
    (body.memory_mib, body.vcpus) = (Some(MIB), Some(1));
    body
}

fn code(error: &Error) -> Given {
    Given::Nothing(error.code().unwrap_or_else(|| panic!("{error}")))
}

async fn ask(client: Client, kind: Kind, parent: SandboxId, key: String) -> Given {
    let options = CreateOptions::default();
    match kind {
        Kind::Create => match client.create_sandbox(&small(), &options).await {
            Ok(made) => Given::Sandbox(made.id),
            Err(error) => code(&error),
        },
        Kind::Fork => match client.fork_sandbox(parent, &ForkSandbox::default(), &options).await {
            Ok(made) => Given::Sandbox(made.id),
            Err(error) => code(&error),
        },
        Kind::Reserve => match client.reserve(&ReserveRequest::new(key, MIB, 1)).await {
            Ok(made) => Given::Reservations(vec![made.id]),
            Err(error) => code(&error),
        },
        Kind::Batch => {
            let item = |n: u32| ReserveRequest::new(format!("{key}-{n}"), MIB, 1);
            let body = ReservationBatch { items: vec![item(0), item(1)] };
            match client.reserve_batch(&body).await {
                Ok(made) => Given::Reservations(made.items.iter().map(|one| one.id).collect()),
                Err(error) => code(&error),
            }
        }
    }
}

/// What is in use: sandboxes, vCPUs, memory.
fn used(quota: &QuotaView) -> [u64; 3] {
    let in_use = &quota.concurrency;
    [in_use.sandboxes.used, in_use.vcpus.used, in_use.memory_mib.used]
}

/// Limits one counter, by its number, to what is held between rounds and [`ROOM`] more.
async fn limit(folder: &Folder, counter: usize) {
    let names = ["sandboxes", "vcpus", "memory_mib"];
    let unit = [1, 1, MIB][counter];
    let limits: serde_json::Map<String, serde_json::Value> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let limit = (at == counter).then_some((1 + ROOM) * unit);
            ((*name).to_owned(), serde_json::json!({ "limit": limit }))
        })
        .collect();
    let body = serde_json::json!({ "overrides": { "concurrency": limits } });
    let body: TenantPatch = serde_json::from_value(body).unwrap();
    folder.operator().patch_tenant(&"default".parse().unwrap(), &body).await.unwrap();
}

async fn give_back(client: &Client, given: Vec<Given>) {
    for one in given {
        match one {
            Given::Sandbox(id) => drop(client.delete_sandbox(id).await.unwrap()),
            Given::Reservations(ids) => {
                for id in ids {
                    client.release_reservation(id).await.unwrap();
                }
            }
            Given::Nothing(_) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_calls_of_every_kind_at_once_never_pass_a_cap_and_never_leak_a_hold() {
    let rounds = std::env::var("PLIMSOLL_IT_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(ROUNDS);
    let folder = Folder::new();
    let _server = folder.up(&[
        "--driver=simulated",
        "--heartbeat-millis=300",
        "--sample-millis=100",
        "--starts-limit=unbounded",
        "--simulated-start-millis=1",
    ]);
    let client = folder.tenant();
    let parent = client.create_sandbox(&small(), &CreateOptions::default()).await.unwrap();
    let held = [1, 1, MIB];
    for round in 0..rounds {
        let counter = usize::try_from(round % 3).unwrap();
        limit(&folder, counter).await;
        let mix = MIXES[usize::try_from(round / 3 % 5).unwrap()];
        let mut all = JoinSet::new();
        for (at, kind) in mix.into_iter().enumerate() {
            all.spawn(ask(client.clone(), kind, parent.id, format!("key-{round}-{at}")));
        }
        let given = all.join_all().await;
        let admitted: u64 = given
            .iter()
            .map(|one| match one {
                Given::Sandbox(_) => 1,
                Given::Reservations(ids) => u64::try_from(ids.len()).unwrap(),
                Given::Nothing(code) => {
                    assert_eq!(*code, RefusalCode::QuotaExceeded, "round {round}");
                    0
                }
            })
            .sum();
        // Pairs alone leave the fifth place free; with any single one asking, it is taken.
        let wanted =
            if mix.contains(&Kind::Create) || !mix.contains(&Kind::Batch) { ROOM } else { 4 };
        assert_eq!(admitted, wanted, "round {round} of {mix:?}");
        let full = used(&client.quota().await.unwrap());
        assert_eq!(full, [1 + wanted, 1 + wanted, (1 + wanted) * MIB], "round {round}");
        give_back(&client, given).await;
        wait_until("what was given back", async || used(&client.quota().await.unwrap()) == held)
            .await;
    }
}
