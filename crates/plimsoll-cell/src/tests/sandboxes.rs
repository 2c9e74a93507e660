//! Sandboxes over HTTP, with an agent that does what the test says.

use plimsoll_store::{MemoryStore, Store as _};
use plimsoll_types::{RefusalCode, SandboxId};
use reqwest::Method;
use serde_json::{Value, json};

use super::agent::{Agent, Start};
use super::{Answer, Tested, until};

async fn with_agent(admittable_mib: i64) -> (Tested, Agent) {
    let cell = Tested::memory().await;
    let agent = Agent::start().await;
    agent.beat(&cell, 1, admittable_mib).await;
    (cell, agent)
}

fn create() -> Value {
    json!({ "template": "shell", "command": ["sleep", "60"], "env": { "TOKEN": "hush" } })
}

fn id(answer: &Answer) -> String {
    answer.body["id"].as_str().unwrap().to_owned()
}

async fn sandboxes(cell: &Tested) -> Vec<Value> {
    cell.get("/v1/sandboxes").await.expect(200).body["items"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_is_answered_once_it_runs() {
    let (cell, agent) = with_agent(8192).await;
    let made = cell.post("/v1/sandboxes", create()).await.expect(201);
    assert_eq!(made.body["status"], "running");
    assert_eq!(made.body["host"], Value::Null, "tenants see no hosts");
    assert!(made.headers.contains_key("plimsoll-decision"));
    assert!(!made.text.contains("hush"), "the environment is no part of the record");
    let path = format!("/v1/sandboxes/{}", id(&made));
    let seen = cell.admin(Method::GET, &path, Value::Null).await.expect(200);
    assert_eq!(seen.body["host"], "h1");

    let patch = json!({ "labels": { "team": "ci" }, "priority": 5 });
    let patched = cell.call("tenant-default", Method::PATCH, &path, Some(patch)).await.expect(200);
    assert_eq!(patched.body["priority"], 5);
    for (query, count) in [
        ("label=team:ci", 1),
        ("label=team:web", 0),
        ("status=running&pool=local", 1),
        ("status=paused", 0),
    ] {
        let list = cell.get(&format!("/v1/sandboxes?{query}")).await.expect(200);
        assert_eq!(list.body["items"].as_array().unwrap().len(), count, "{query}");
        assert_eq!(list.body["next_cursor"], Value::Null);
    }

    let exec = json!({ "command": ["echo", "hi"] });
    let said = cell.post(&format!("{path}/exec"), exec).await.expect(200);
    assert_eq!(said.body["stdout"], "echo hi");

    // A host that says more than it was asked for is cut; the newest is what is wanted.
    let logs = cell.get(&format!("{path}/logs?bytes=9")).await.expect(200);
    assert_eq!(
        (&logs.body["output"], &logs.body["truncated"]),
        (&json!("xthe end\n"), &json!(true))
    );
    assert_eq!(logs.body["id"], made.body["id"]);
    let bad = cell.get(&format!("{path}/logs?bytes=0")).await.expect_code(400, "invalid_request");
    assert_eq!(bad.body["field"], "bytes");
    cell.admin(Method::POST, "/v1/admin/tenants", json!({ "id": "other" })).await.expect(201);
    let key = json!({ "role": "tenant", "tenant": "other" });
    let key = cell.admin(Method::POST, "/v1/admin/keys", key).await.expect(201);
    let others = cell.request(Method::GET, &format!("{path}/logs"));
    let others = others.bearer_auth(key.body["key"].as_str().unwrap());
    Tested::send(others).await.expect_code(404, "not_found");
    let operator = cell.admin(Method::GET, &format!("{path}/logs"), Value::Null).await.expect(200);
    assert!(operator.body["output"].as_str().unwrap().len() <= 65_536);
    let host = cell.call("host", Method::GET, &format!("{path}/logs"), None).await;
    host.expect_code(403, "forbidden");

    for _ in 0..2 {
        let gone = cell.call("tenant-default", Method::DELETE, &path, None).await.expect(202);
        assert!(["terminating", "terminated"].contains(&gone.body["status"].as_str().unwrap()));
    }
    let wait = format!("{path}/wait?status=terminated");
    cell.get(&wait).await.expect(200);
    assert!(agent.was_told("end"));
    cell.get(&path).await.expect(200);
    let gone = cell.get(&format!("{path}/logs")).await.expect_code(409, "conflict");
    assert!(gone.body["detail"].as_str().unwrap().contains("terminated"), "{}", gone.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_and_resume_wait_for_the_host() {
    let (cell, agent) = with_agent(8192).await;
    let made = cell.post("/v1/sandboxes", create()).await.expect(201);
    let path = format!("/v1/sandboxes/{}", id(&made));
    let paused = cell.post(&format!("{path}/pause"), json!({})).await.expect(200);
    assert_eq!(paused.body["status"], "paused");
    let resumed = cell.post(&format!("{path}/resume"), json!({})).await.expect(200);
    assert_eq!(resumed.body["status"], "running");
    // A call into a paused one wakes it.
    cell.post(&format!("{path}/pause"), json!({})).await.expect(200);
    let exec = json!({ "command": ["true"] });
    cell.post(&format!("{path}/exec"), exec).await.expect(200);
    let told: Vec<String> = agent.commands().into_iter().map(|(op, _)| op).collect();
    assert_eq!(told, ["start", "pause", "resume", "pause", "resume", "exec"]);
    cell.post(&format!("{path}/keepalive"), json!({})).await.expect(200);
    let stopped = cell.post(&format!("{path}/stop"), json!({})).await.expect(200);
    assert_eq!(stopped.body["status"], "stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_create_is_answered_at_once() {
    let (cell, agent) = with_agent(8192).await;
    agent.starts(Start::Hold);
    let made = cell.post("/v1/sandboxes?async=true", create()).await.expect(201);
    assert_eq!(made.body["status"], "provisioning");
    let path = format!("/v1/sandboxes/{}", id(&made));
    let late = cell.get(&format!("{path}/wait?timeout_seconds=0")).await;
    let late = late.expect_code(408, "wait_timeout");
    assert_eq!(late.body["sandbox"]["status"], "provisioning");
    let runs = format!("{path}/wait?status=running");
    let (ran, ()) = tokio::join!(cell.get(&runs), async {
        agent.starts(Start::Done);
    });
    assert_eq!(ran.expect(200).body["status"], "running");
}

/// Two at once under one key: one guest, one answer.
#[tokio::test(flavor = "multi_thread")]
async fn two_creates_under_one_key_join() {
    let (cell, agent) = with_agent(8192).await;
    agent.starts(Start::Hold);
    let keyed = || {
        let request = cell.request(Method::POST, "/v1/sandboxes").json(&create());
        Tested::send(request.bearer_auth(cell.key("tenant-default")).header("Idempotency-Key", "k"))
    };
    let (one, other, ()) = tokio::join!(keyed(), keyed(), async {
        until("the start was sent", || async { agent.was_told("start") }).await;
        agent.starts(Start::Done);
    });
    let (one, other) = (one.expect(201), other.expect(201));
    assert_eq!(one.body["id"], other.body["id"]);
    assert_eq!(keyed().await.expect(201).body["id"], one.body["id"]);
    assert_eq!(agent.commands().len(), 1);
    let request = cell.request(Method::POST, "/v1/sandboxes").json(&json!({ "template": "shell" }));
    let request = request.bearer_auth(cell.key("tenant-default")).header("Idempotency-Key", "k");
    Tested::send(request).await.expect_code(409, "conflict");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_is_no_refusal() {
    let (cell, agent) = with_agent(8192).await;
    agent.starts(Start::Failed);
    let failed = cell.post("/v1/sandboxes", create()).await.expect_code(502, "start_failed");
    assert!(failed.text.contains("no such program"), "{}", failed.text);
    assert_eq!(sandboxes(&cell).await[0]["status"], "failed");
}

/// I7: hosts that refuse after the admission leave no failed record.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_refuse_after_the_admission_leave_nothing() {
    let (cell, agent) = with_agent(8192).await;
    agent.starts(Start::Refused(RefusalCode::HostPressure));
    let refused = cell.post("/v1/sandboxes", create()).await.expect(503);
    assert!(refused.headers.contains_key("retry-after"), "{}", refused.text);
    assert!(refused.body["decision_id"].is_string(), "{}", refused.text);
    assert!(sandboxes(&cell).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_fleet_queues_or_refuses_as_asked() {
    let (cell, agent) = with_agent(0).await;
    cell.post("/v1/sandboxes", create()).await.expect_code(503, "no_capacity");
    let mut queue = create();
    queue["on_full"] = json!("queue");
    let queued = cell.post("/v1/sandboxes", queue.clone()).await.expect(202);
    assert_eq!(queued.body["status"], "queued");
    // Waits its second, keeps nothing.
    let mut waits = create();
    waits["wait_seconds"] = json!(1);
    cell.post("/v1/sandboxes", waits.clone()).await.expect_code(503, "no_capacity");
    assert_eq!(sandboxes(&cell).await.len(), 1);
    // Waits, and room comes.
    waits["wait_seconds"] = json!(60);
    let (made, ()) = tokio::join!(cell.post("/v1/sandboxes", waits), async {
        until("both wait", || async { sandboxes(&cell).await.len() == 2 }).await;
        agent.beat(&cell, 2, 8192).await;
    });
    assert_eq!(made.expect(201).body["status"], "running");
    let path = format!("/v1/sandboxes/{}/wait", id(&queued));
    cell.get(&path).await.expect(200);
}

/// A caller that goes away leaves no guest that nobody owns.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_leaves_leaves_nothing() {
    let (cell, agent) = with_agent(8192).await;
    agent.starts(Start::Hold);
    let url = format!("http://{}/v1/sandboxes", cell.cell.address());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.post(url).bearer_auth(cell.key("tenant-default")).json(&create());
    let leaving = tokio::spawn(request.send());
    until("the start was sent", || async { agent.was_told("start") }).await;
    leaving.abort();
    until("the guest is ended", || async { agent.was_told("end") }).await;
    until("the record has ended", || async {
        sandboxes(&cell).await.iter().all(|one| one["status"] == "terminated")
    })
    .await;

    // The same from the queue: not even a record stays.
    agent.beat(&cell, 2, 0).await;
    let before = sandboxes(&cell).await.len();
    let mut waits = create();
    waits["wait_seconds"] = json!(600);
    let url = format!("http://{}/v1/sandboxes", cell.cell.address());
    let request = cell.client.post(url).bearer_auth(cell.key("tenant-default")).json(&waits);
    let leaving = tokio::spawn(request.send());
    until("it waits", || async { sandboxes(&cell).await.len() == before + 1 }).await;
    leaving.abort();
    until("it is gone", || async { sandboxes(&cell).await.len() == before }).await;
}

/// The first of two under one key goes away: the sandbox is the other's.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_leaves_takes_nothing_from_another() {
    let (cell, agent) = with_agent(8192).await;
    agent.starts(Start::Hold);
    let request = |client: &reqwest::Client| {
        let url = format!("http://{}/v1/sandboxes", cell.cell.address());
        let request = client.post(url).bearer_auth(cell.key("tenant-default")).json(&create());
        request.header("Idempotency-Key", "k")
    };
    let other_client = reqwest::Client::builder().no_proxy().build().unwrap();
    let leaving = tokio::spawn(request(&other_client).send());
    until("the start was sent", || async { agent.was_told("start") }).await;
    let staying = tokio::spawn(Tested::send(request(&cell.client)));
    until("the other has joined", || async {
        let sample = "plimsoll_calls_waiting";
        cell.metric(sample).await == Some(2.0)
    })
    .await;
    leaving.abort();
    until("the first has left", || async {
        cell.metric("plimsoll_calls_waiting").await == Some(1.0)
    })
    .await;
    agent.starts(Start::Done);
    let made = staying.await.unwrap().expect(201);
    assert_eq!(made.body["status"], "running");
    assert!(!agent.was_told("end"));
}

/// A record that the engine has let go is read from the store.
#[tokio::test(flavor = "multi_thread")]
async fn an_ended_record_stays_readable() {
    let store = MemoryStore::new();
    let cell = Tested::over(store.clone(), |config| config.engine.ended_max = 1).await;
    let agent = Agent::start().await;
    agent.beat(&cell, 1, 60_000).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let made = cell.post("/v1/sandboxes", create()).await.expect(201);
        let path = format!("/v1/sandboxes/{}", id(&made));
        cell.call("tenant-default", Method::DELETE, &path, None).await.expect(202);
        cell.get(&format!("{path}/wait?status=terminated")).await.expect(200);
        ids.push(id(&made));
    }
    let reader = store.reader();
    for one in &ids {
        let sandbox: SandboxId = one.parse().unwrap();
        assert!(reader.sandbox(sandbox).unwrap().is_some());
        cell.get(&format!("/v1/sandboxes/{one}")).await.expect(200);
    }
    let mut listed = Vec::new();
    let mut query = "?limit=2".to_owned();
    loop {
        let page = cell.get(&format!("/v1/sandboxes{query}")).await.expect(200);
        let items = page.body["items"].as_array().unwrap().clone();
        listed.extend(items.iter().map(|one| one["id"].as_str().unwrap().to_owned()));
        match page.body["next_cursor"].as_str() {
            Some(cursor) => query = format!("?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(listed, ids);
}

/// An admin's settings survive the way there and back, and every change is a whole row.
#[tokio::test(flavor = "multi_thread")]
async fn settings_are_shown_as_they_were_set() {
    let cell = Tested::memory().await;
    let pool = json!({ "name": "p", "limit": 5, "regime": "committed", "pause": "keep",
        "preemption": { "mode": "idle", "idle_seconds": 30, "min_run_seconds": 60 },
        "placement": "pack", "overflow": ["local"] });
    let made = cell.admin(Method::POST, "/v1/admin/pools", pool.clone()).await.expect(201);
    for (name, value) in pool.as_object().unwrap() {
        assert_eq!(made.body[name], *value, "{name}");
    }
    let patch = json!({ "limit": null, "placement": "spread" });
    let patched = cell.admin(Method::PATCH, "/v1/admin/pools/p", patch).await.expect(200);
    assert_eq!(patched.body["limit"], Value::Null);
    assert_eq!(patched.body["regime"], "committed");
    let seen = cell.admin(Method::GET, "/v1/admin/pools/p", Value::Null).await.expect(200);
    assert_eq!(seen.body, patched.body);
    cell.admin(Method::DELETE, "/v1/admin/pools/p", Value::Null).await.expect(204);
    cell.admin(Method::GET, "/v1/admin/pools/p", Value::Null).await.expect(404);

    let template = json!({ "name": "t", "driver": "gvisor", "memory_mib": 256, "vcpus": 2,
        "overhead_mib": 16, "env": { "A": "b" }, "labels": { "zone": "a" },
        "counted": { "gpu": 1 } });
    let made = cell.admin(Method::POST, "/v1/admin/templates", template.clone()).await.expect(201);
    for (name, value) in template.as_object().unwrap() {
        assert_eq!(made.body[name], *value, "{name}");
    }
    let plan = json!({ "id": "p", "concurrency": { "sandboxes": { "limit": 5, "burst_limit": 9 } },
        "rate": { "creates_per_minute": { "limit": 7 } } });
    let made = cell.admin(Method::POST, "/v1/admin/plans", plan.clone()).await.expect(201);
    assert_eq!(made.body["concurrency"], plan["concurrency"]);
    assert_eq!(made.body["rate"], plan["rate"]);
    let tenant = json!({ "id": "t", "plan": "p", "payment_method": true });
    cell.admin(Method::POST, "/v1/admin/tenants", tenant).await.expect(201);
    cell.admin(Method::DELETE, "/v1/admin/plans/p", Value::Null).await.expect(409);
    let suspend = json!({ "suspended": true, "suspended_reason": "unpaid" });
    let held = cell.admin(Method::PATCH, "/v1/admin/tenants/t", suspend).await.expect(200);
    assert_eq!(held.body["suspended_reason"], "unpaid");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_a_sandbox_s_life() {
    let (cell, _agent) = with_agent(8192).await;
    let made = cell.post("/v1/sandboxes", create()).await.expect(201);
    let path = format!("/v1/sandboxes/{}", id(&made));
    cell.call("tenant-default", Method::DELETE, &path, None).await.expect(202);
    cell.get(&format!("{path}/wait?status=terminated")).await.expect(200);
    let events = cell.get("/v1/events").await.expect(200);
    let kinds: Vec<&str> = events.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    for kind in ["sandbox.created", "sandbox.started", "sandbox.terminated"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    let last = events.body["items"].as_array().unwrap().last().unwrap()["id"].clone();
    let after = format!("/v1/events?after={}", last.as_str().unwrap());
    assert_eq!(cell.get(&after).await.expect(200).body["items"], json!([]));
}
