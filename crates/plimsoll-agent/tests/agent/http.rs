use std::future::pending;

use plimsoll_agent::driver::Guests;
use plimsoll_agent::{AgentConfig, ConfigError, Means, StartError, TlsFiles};
use plimsoll_api::{GuestExec, Problem};
use plimsoll_client::{AgentClient, AgentError};
use plimsoll_types::{Driver, HostOutcome, RefusalCode, SandboxId};

use crate::rig::{Agent, Cell, Machine, PATIENCE, config, end, simulated, spec, start};

/// One request by hand; status and body.
async fn request(
    agent: &Agent,
    method: &str,
    path: &str,
    secret: Option<&str>,
    body: &[u8],
) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let address = agent.url().replace("http://", "");
    let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    let authorization =
        secret.map_or(String::new(), |secret| format!("authorization: Bearer {secret}\r\n"));
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: agent\r\n{authorization}connection: close\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // A server that refuses early may close before it has read everything.
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).expect("a status line").parse().unwrap();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
    (status, body)
}

#[tokio::test]
async fn all_but_health_takes_the_secret() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Agent::simulated(&mut cell, data.path()).await;
    assert_eq!(request(&agent, "GET", "/healthz", None, b"").await.0, 200);
    let secret = cell.target().secret.unwrap();
    let almost = &secret.expose()[..63];
    for path in ["/v1/capacity", "/metrics", "/v1/guests/x/logs", "/nowhere"] {
        for shown in [None, Some(""), Some("host-key"), Some(almost)] {
            let (status, body) = request(&agent, "GET", path, shown, b"").await;
            assert_eq!(status, 401, "{path} {shown:?}");
            let problem: Problem = serde_json::from_str(&body).unwrap();
            assert_eq!(problem.code, RefusalCode::Unauthenticated.into());
        }
    }
    let (status, text) = request(&agent, "GET", "/metrics", Some(secret.expose()), b"").await;
    assert_eq!(status, 200);
    for name in ["plimsoll_agent_admittable_mib 31744", "plimsoll_agent_heartbeats_total"] {
        assert!(text.contains(name), "{name} in {text}");
    }
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn bad_requests_get_an_answer_that_names_what_is_wrong() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Agent::simulated(&mut cell, data.path()).await;
    let secret = cell.target().secret.unwrap();
    let secret = Some(secret.expose());
    let id = SandboxId(1);
    let pause = format!(
        r#"{{"fence":{{"epoch":1,"number":1}},"op":"pause","id":"{id}","attempt":1,"kind":"keep"}}"#
    );
    let huge = vec![b' '; (1 << 20) + 1];
    type Case<'a> = (&'a str, String, &'a [u8], u16, Option<&'a str>);
    let cases: &[Case<'_>] = &[
        ("POST", "/v1/guests".into(), b"{", 400, None),
        ("POST", "/v1/guests".into(), pause.as_bytes(), 400, Some("op")),
        ("POST", format!("/v1/guests/{}/pause", SandboxId(2)), pause.as_bytes(), 400, Some("id")),
        ("POST", format!("/v1/guests/{id}/resume"), pause.as_bytes(), 400, Some("op")),
        ("POST", "/v1/guests/nobody/pause".into(), pause.as_bytes(), 400, Some("id")),
        ("DELETE", format!("/v1/guests/{id}?epoch=1&number=x&attempt=1"), b"", 400, Some("number")),
        ("DELETE", format!("/v1/guests/{id}"), b"", 400, Some("attempt")),
        ("GET", format!("/v1/guests/{id}/logs"), b"", 404, None),
        ("GET", format!("/v1/guests/{id}/logs?bytes=0"), b"", 400, Some("bytes")),
        ("POST", format!("/v1/guests/{id}/keepalive"), b"", 404, None),
        ("GET", "/v1/nothing".into(), b"", 404, None),
        ("PUT", "/v1/capacity".into(), b"", 405, None),
        ("POST", "/v1/guests".into(), &huge, 413, None),
    ];
    for (method, path, body, status, field) in cases {
        let (got, text) = request(&agent, method, path, secret, body).await;
        assert_eq!(got, *status, "{method} {path}: {text}");
        let problem: Problem = serde_json::from_str(&text).unwrap();
        if field.is_some() {
            assert_eq!(problem.field.as_deref(), *field, "{method} {path}");
        }
    }
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn an_exec_needs_a_guest_that_runs() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Agent::simulated(&mut cell, data.path()).await;
    let exec = GuestExec {
        id: SandboxId(1),
        attempt: 1,
        command: vec!["true".to_owned()],
        timeout_seconds: 5,
    };
    let code = |error: AgentError| match error {
        AgentError::Refused(problem) => problem.code.refusal(),
        other => panic!("{other}"),
    };
    let error = cell.client.exec(&cell.target(), &exec, PATIENCE).await.unwrap_err();
    assert_eq!(code(error), Some(RefusalCode::NotFound));
    assert_eq!(cell.send(start(spec(1, Driver::Simulated))).await, HostOutcome::Done);
    assert_eq!(cell.send(end(1)).await, HostOutcome::Done);
    let error = cell.client.exec(&cell.target(), &exec, PATIENCE).await.unwrap_err();
    assert_eq!(code(error), Some(RefusalCode::NotFound));
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn an_agent_does_not_speak_in_the_clear_off_loopback() {
    let data = tempfile::tempdir().unwrap();
    let cell = Cell::start().await;
    let mut open: AgentConfig = config(&cell, data.path());
    open.listen = "0.0.0.0:0".parse().unwrap();
    assert!(matches!(open.validate(), Err(ConfigError::InTheClear(_))));
    open.insecure = true;
    assert_eq!(open.validate(), Ok(()));
}

#[tokio::test]
async fn an_agent_with_a_certificate_speaks_tls() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let files = TlsFiles {
        certificate: data.path().join("certificate.pem"),
        key: data.path().join("key.pem"),
    };
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    cell.client = AgentClient::new(Some(made.cert.pem().as_bytes())).unwrap();
    let mut config = config(&cell, data.path());
    config.tls = Some(files.clone());
    let drivers = vec![simulated(&config)];
    let agent = Agent::start(config.clone(), drivers, &Machine::idle()).await;
    cell.heartbeat("a heartbeat", |heartbeat| heartbeat.memory_mib_admittable.is_some()).await;
    assert!(cell.target().address.starts_with("https://127.0.0.1:"));
    assert!(cell.capacity().await.complete);
    agent.stop().await.unwrap();

    std::fs::write(&files.key, "no key").unwrap();
    let means = Means {
        drivers: vec![simulated(&config)],
        guests: Guests::open(data.path(), crate::rig::shim(), false).unwrap(),
        machine: Box::new(Machine::idle()),
    };
    let error = plimsoll_agent::run(config.clone(), means, pending()).await.unwrap_err();
    assert!(matches!(error, StartError::Serve(_)), "{error}");
    // The start that failed holds nothing: the next one works.
    config.tls = None;
    let agent = Agent::start(config.clone(), vec![simulated(&config)], &Machine::idle()).await;
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_data_folder_has_one_agent() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Agent::simulated(&mut cell, data.path()).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let other = config(&cell, elsewhere.path());
    let means = Means {
        drivers: vec![simulated(&other)],
        guests: Guests::open(elsewhere.path(), crate::rig::shim(), false).unwrap(),
        machine: Box::new(Machine::idle()),
    };
    let second = config(&cell, data.path());
    let error = plimsoll_agent::run(second, means, pending()).await.unwrap_err();
    assert!(matches!(error, StartError::Folder(_)), "{error}");
    agent.stop().await.unwrap();
}
