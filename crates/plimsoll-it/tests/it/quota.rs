//! The quota ladder with a real receiver: every step once, and the way back from each.

use std::time::Duration;

use plimsoll_api::{
    CreateSandbox, QuotaState, Sandbox, Secret, TenantPatch, UsageGroup, UsageQuery,
};
use plimsoll_client::{Client, ClientConfig, CreateOptions, Error, RetryPolicy};
use plimsoll_types::{RefusalCode, SandboxId, SandboxStatus, TenantId};
use serde_json::Value;

use crate::receiver::Receiver;
use crate::rig::{Folder, Server, wait_until};

/// A budget of CPU-seconds that [`Tenant::burn`] uses up at one each second.
const BUDGET: u64 = 5;

fn up(folder: &Folder) -> Server {
    folder.up(&[
        "--driver=process,simulated",
        "--heartbeat-millis=200",
        "--sample-millis=100",
        "--simulated-start-millis=1",
        "--starts-limit=unbounded",
        "--webhooks-private",
        "--quota-pause-after-seconds=1",
        "--quota-idle-seconds=1",
        "--quota-look-seconds=1",
        "--quota-announce-after-seconds=1",
        "--quota-grace-seconds=10",
    ])
}

/// A tenant with a key and an endpoint of its own.
struct Tenant<'a> {
    folder: &'a Folder,
    receiver: &'a Receiver,
    id: TenantId,
    client: Client,
    path: String,
}

impl<'a> Tenant<'a> {
    async fn make(folder: &'a Folder, receiver: &'a Receiver, name: &str, pays: bool) -> Self {
        let limit = format!("consumption.cpu_seconds.limit={BUDGET}");
        folder.run(&["plans", "create", &format!("plan-{name}"), &limit]).ok();
        let plan = format!("plan=plan-{name}");
        let pays = format!("payment_method={pays}");
        folder.run(&["tenants", "create", name, &plan, &pays]).ok();
        let key = folder.run(&["keys", "create", "--role=tenant", &format!("--for-tenant={name}")]);
        let mut config =
            ClientConfig::new([folder.url()]).with_key(Secret::new(key.ok().stdout.trim()));
        config.retry = RetryPolicy::none();
        let client = Client::new(config).unwrap();
        let path = format!("/{name}");
        let endpoint = plimsoll_api::CreateEndpoint {
            url: receiver.url(&path),
            events: Vec::new(),
            description: String::new(),
        };
        client.create_endpoint(&endpoint).await.unwrap();
        Self { folder, receiver, id: name.parse().unwrap(), client, path }
    }

    async fn create(&self, change: impl FnOnce(&mut CreateSandbox)) -> Result<Sandbox, Error> {
        let mut body = CreateSandbox::new("sleeper".parse().unwrap());
        (body.memory_mib, body.vcpus) = (Some(16), Some(1));
        change(&mut body);
        self.client.create_sandbox(&body, &CreateOptions::default()).await
    }

    /// A real process that does nothing: idle.
    async fn rest(&self) -> SandboxId {
        let command = ["sh", "-c", "exec sleep 1000"].map(str::to_owned).to_vec();
        let made = self
            .create(|body| {
                body.template = "process".parse().unwrap();
                (body.memory_mib, body.command) = (Some(64), command);
            })
            .await;
        made.unwrap().id
    }

    /// A guest that is said to keep one core busy, however busy the machine is.
    async fn burn(&self) -> SandboxId {
        self.create(|body| body.vcpus = Some(8)).await.unwrap().id
    }

    async fn status(&self, id: SandboxId) -> SandboxStatus {
        self.client.sandbox(id).await.unwrap().status
    }

    async fn state(&self) -> QuotaState {
        self.client.quota().await.unwrap().state
    }

    fn events(&self, kind: &str) -> Vec<Value> {
        self.receiver.of(&self.path, kind)
    }

    /// Waits until the tenant was told.
    async fn told(&self, kind: &str) -> Value {
        wait_until(kind, async || !self.events(kind).is_empty()).await;
        self.events(kind).remove(0)
    }

    async fn change(&self, patch: TenantPatch) {
        self.folder.operator().patch_tenant(&self.id, &patch).await.unwrap();
    }

    async fn pay(&self) {
        self.change(TenantPatch { payment_method: Some(true), ..TenantPatch::default() }).await;
    }

    async fn upgrade(&self) {
        let plan = Some("default".parse().unwrap());
        self.change(TenantPatch { plan, ..TenantPatch::default() }).await;
    }

    async fn refused(&self) {
        let error = self.create(|_| {}).await.unwrap_err();
        let seen = (error.status(), error.code());
        assert_eq!(seen, (Some(403), Some(RefusalCode::BudgetExhausted)), "{error}");
        assert!(error.problem().unwrap().resets_at.is_some());
    }

    async fn welcome(&self) {
        self.create(|_| {}).await.unwrap();
    }

    /// Asserts that each of these was said once and the rest of the ladder never.
    fn said_once(&self, kinds: &[&str]) {
        for kind in [
            "quota.warning",
            "quota.exhausted",
            "quota.suspended",
            "quota.deletion_scheduled",
            "quota.deleted",
            "quota.resumed",
            "quota.overage",
        ] {
            let wanted = usize::from(kinds.contains(&kind));
            assert_eq!(self.events(kind).len(), wanted, "{} {kind}", self.id);
        }
    }
}

/// Warned, and a larger plan clears the warning.
async fn warned(folder: &Folder, receiver: &Receiver) {
    let tenant = Tenant::make(folder, receiver, "warned", false).await;
    let busy = tenant.burn().await;
    let said = tenant.told("quota.warning").await;
    let top = &said["data"]["top_consumers"][0];
    assert_eq!(top["id"], busy.to_string(), "{said}");
    tenant.welcome().await;
    tenant.upgrade().await;
    wait_until("the end of the warning", async || tenant.state().await == QuotaState::Ok).await;
    tenant.welcome().await;
    tenant.said_once(&["quota.warning"]);
}

/// Exhausted: new work is refused and running work goes on; payment lets all of it in again.
async fn exhausted(folder: &Folder, receiver: &Receiver) {
    let tenant = Tenant::make(folder, receiver, "exhausted", false).await;
    let busy = tenant.burn().await;
    tenant.told("quota.exhausted").await;
    tenant.refused().await;
    assert_eq!(tenant.status(busy).await, SandboxStatus::Running);
    tenant.pay().await;
    tenant.told("quota.resumed").await;
    tenant.welcome().await;
    assert!(tenant.events("quota.warning").len() <= 1);
    assert_eq!(tenant.events("quota.exhausted").len(), 1);
    assert_eq!(tenant.events("quota.resumed").len(), 1);
    assert!(tenant.events("quota.deletion_scheduled").is_empty());
}

/// Hibernated: what is idle is paused, what works goes on; a larger plan wakes it by itself.
async fn hibernated(folder: &Folder, receiver: &Receiver) {
    let tenant = Tenant::make(folder, receiver, "hibernated", false).await;
    let idle = tenant.rest().await;
    let busy = tenant.burn().await;
    tenant.told("quota.suspended").await;
    wait_until("its sleep", async || tenant.status(idle).await == SandboxStatus::Paused).await;
    assert_eq!(tenant.status(busy).await, SandboxStatus::Running);
    let error = tenant.client.resume_sandbox(idle).await.unwrap_err();
    assert_eq!(error.code(), Some(RefusalCode::BudgetExhausted), "{error}");
    tenant.upgrade().await;
    tenant.told("quota.resumed").await;
    wait_until("its way back", async || tenant.status(idle).await == SandboxStatus::Running).await;
    tenant.welcome().await;
    assert_eq!(tenant.events("quota.suspended").len(), 1);
    assert_eq!(tenant.events("quota.resumed").len(), 1);
}

/// Deletion announced, and called off by a payment method.
async fn deleting(folder: &Folder, receiver: &Receiver) {
    let tenant = Tenant::make(folder, receiver, "deleting", false).await;
    let idle = tenant.rest().await;
    tenant.burn().await;
    let said = tenant.told("quota.deletion_scheduled").await;
    assert_eq!(said["data"]["sandboxes"], serde_json::json!([idle]), "{said}");
    assert!(said["data"]["not_before"].is_string(), "{said}");
    assert_eq!(tenant.state().await, QuotaState::Deleting);
    assert!(tenant.client.quota().await.unwrap().deletes_at.is_some());
    tenant.pay().await;
    tenant.told("quota.resumed").await;
    wait_until("its way back", async || tenant.status(idle).await == SandboxStatus::Running).await;
    tenant.welcome().await;
    assert!(tenant.events("quota.deleted").is_empty());
    assert_eq!(tenant.events("quota.deletion_scheduled").len(), 1);
}

/// To the end: what was named is deleted once its time has come, and nothing else.
async fn deleted(folder: &Folder, receiver: &Receiver) {
    let tenant = Tenant::make(folder, receiver, "deleted", false).await;
    let idle = tenant.rest().await;
    let busy = tenant.burn().await;
    let said = tenant.told("quota.deleted").await;
    assert_eq!(said["data"]["sandboxes"], serde_json::json!([idle]), "{said}");
    wait_until("its end", async || tenant.status(idle).await == SandboxStatus::Terminated).await;
    assert_eq!(tenant.status(busy).await, SandboxStatus::Running);
    let announced = tenant.told("quota.deletion_scheduled").await;
    let not_before: plimsoll_api::Time =
        announced["data"]["not_before"].as_str().unwrap().parse().unwrap();
    let at: plimsoll_api::Time = said["at"].as_str().unwrap().parse().unwrap();
    assert!(not_before <= at, "deleted at {at}, announced for {not_before}");
    tenant.said_once(&[
        "quota.warning",
        "quota.exhausted",
        "quota.suspended",
        "quota.deletion_scheduled",
        "quota.deleted",
    ]);
    let shown = folder.run(&["quota", "--tenant=deleted", "--key-file=plimsoll-data/operator.key"]);
    shown.ok().says("top consumers").says(&busy.to_string()).says("hibernated");
}

/// A tenant that pays is refused nothing: its overage is said once for each step.
async fn paying(folder: &Folder, receiver: &Receiver) {
    let tenant = Tenant::make(folder, receiver, "paying", true).await;
    tenant.burn().await;
    while tenant.events("quota.overage").len() < 3 {
        // Between any two looks, whatever the meter says, work gets in.
        let made = tenant.create(|_| {}).await.unwrap();
        tenant.client.delete_sandbox(made.id).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let passed: Vec<u64> = tenant
        .events("quota.overage")
        .iter()
        .map(|event| event["data"]["passed_bp"].as_u64().unwrap())
        .collect();
    assert!(passed.is_sorted_by(|a, b| a < b), "{passed:?}");
    assert!(passed.iter().all(|share| *share >= 10_000 && share % 2_500 == 0), "{passed:?}");
    assert!(tenant.events("quota.exhausted").is_empty());
    assert!(tenant.events("quota.suspended").is_empty());
    let used = tenant.client.quota().await.unwrap().consumption.cpu_seconds;
    assert!(used.used >= BUDGET && used.limit == Some(BUDGET), "{used:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_of_the_ladder_is_said_once_and_one_call_leads_back_from_each() {
    let folder = Folder::new();
    let _server = up(&folder);
    let receiver = Receiver::start().await;
    let all = async {
        tokio::join!(
            warned(&folder, &receiver),
            exhausted(&folder, &receiver),
            hibernated(&folder, &receiver),
            deleting(&folder, &receiver),
            deleted(&folder, &receiver),
            paying(&folder, &receiver),
        )
    };
    tokio::time::timeout(Duration::from_secs(180), all).await.expect("the ladder ends");
}

/// A guest that lives between two heartbeats is billed for what it used.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_no_heartbeat_listed_is_billed_at_its_end() {
    let folder = Folder::new();
    let words = ["--driver=process,simulated", "--heartbeat-millis=10000", "--sample-millis=10000"];
    let _server = folder.up(&words);
    let client = folder.tenant();
    let work = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo done > mark; sleep 1000";
    let mut body = CreateSandbox::new("process".parse().unwrap());
    body.memory_mib = Some(64);
    body.command = ["sh", "-c", work].map(str::to_owned).to_vec();
    let made = client.create_sandbox(&body, &CreateOptions::default()).await.unwrap();
    let id = made.id.to_string();
    wait_until("its work", async || {
        folder.run(&["exec", &id, "--", "cat", "mark"]).stdout == "done\n"
    })
    .await;
    client.delete_sandbox(made.id).await.unwrap();
    let query = UsageQuery { group_by: UsageGroup::Sandbox, ..UsageQuery::default() };
    let billed = async || {
        let rows = client.usage(&query).await.unwrap().items;
        rows.iter().find(|row| row.id.as_deref() == Some(&id)).map_or(0, |row| row.cpu_millis)
    };
    wait_until("its bill", async || billed().await >= 50).await;
    let by_day = UsageQuery { group_by: UsageGroup::Day, ..UsageQuery::default() };
    let days = client.usage(&by_day).await.unwrap().items;
    assert_eq!(days.iter().map(|day| day.cpu_millis).sum::<u64>(), billed().await);
    assert!(billed().await < 60_000);
}
