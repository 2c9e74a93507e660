//! Webhook endpoints.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_api as api;
use plimsoll_api::{FieldError, Secret};
use plimsoll_engine::rows::{EndpointRow, EventRow, Role, SigningSecret};
use plimsoll_engine::{Admin, Caller, Command, Read, Reply};
use plimsoll_types::{EndpointId, EventId, RefusalCode};

use super::admin::once;
use super::{cursor, named, slice};
use crate::app::App;
use crate::clock::wall;
use crate::http::{Answered, Query, Reject, Tenant, json, no_content, page, read};
use crate::map;

const WHAT: &str = "webhook endpoint";
/// What a signing secret starts with, as the Standard Webhooks convention has it.
const SECRET_PREFIX: &str = "whsec_";
/// Bytes of a signing secret: as many as the digest that it keys.
const SECRET_BYTES: usize = 32;

/// Whose endpoints a caller means: a tenant's, or for an operator who names no tenant, those that
/// hear of everything.
fn owner(tenant: &Tenant) -> Option<plimsoll_types::TenantId> {
    let all = tenant.caller.role == Role::Operator && !tenant.named;
    (!all).then(|| tenant.caller.tenant.clone())
}

/// The endpoints that the caller may see.
async fn own(app: &App, tenant: &Tenant) -> Result<Vec<EndpointRow>, Reject> {
    // An operator who names no tenant sees every endpoint.
    let command = Command::Read(Read::Endpoints(owner(tenant)));
    match app.call(tenant.caller.clone(), command).await? {
        Reply::Endpoints(rows) => Ok(rows),
        _ => Err(Reject::unexpected()),
    }
}

async fn find(app: &App, tenant: &Tenant, id: &str) -> Result<EndpointRow, Reject> {
    let id: EndpointId = named(id, WHAT)?;
    let rows = own(app, tenant).await?;
    rows.into_iter().find(|row| row.id == id).ok_or_else(|| Reject::not_found(WHAT))
}

/// Writes an endpoint. The engine takes such changes from operators; that this caller may make it
/// was checked here.
async fn put(app: &App, tenant: &Tenant, admin: Admin) -> Result<(), Reject> {
    let caller = Caller { role: Role::Operator, tenant: tenant.caller.tenant.clone() };
    app.call(caller, Command::Admin(Box::new(admin))).await.map(drop)
}

/// Checks where an endpoint lies. An address that is given as a name is looked at again each time
/// something is delivered, when it is known what the name stands for.
fn check_url(app: &App, url: &str) -> Result<(), Reject> {
    let refuse = |given: &str, bound: &str| {
        Err(FieldError::new("url", format_args!("{given:?}"), bound).into())
    };
    let Ok(parsed) = url.parse::<Uri>() else {
        return refuse(url, "an http or https URL");
    };
    let Some(authority) = parsed.authority() else {
        return refuse(url, "an http or https URL");
    };
    if authority.as_str().contains('@') {
        return refuse("a URL with credentials", "a URL without credentials");
    }
    if app.config.webhooks_private {
        return Ok(());
    }
    let host = authority.host();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let local = host == "localhost" || host.ends_with(".localhost");
    if local || bare.parse().is_ok_and(is_private) {
        return refuse(host, "an address that is public, unless the operator allows others");
    }
    Ok(())
}

/// Whether an address is no place to send webhooks to: this machine, its network, or nobody.
pub(crate) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_multicast()
                || v4.is_broadcast()
                // "This network", shared address space (RFC 6598), benchmarks, and reserved.
                || a == 0
                || (a == 100 && (64..128).contains(&b))
                || (a == 198 && (18..20).contains(&b))
                || a >= 240
        }
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_private(IpAddr::V4(v4)),
            None => {
                let first = v6.segments()[0];
                v6.is_loopback()
                    || v6.is_unspecified()
                    || v6.is_multicast()
                    // Unique local, link-local, site-local.
                    || (first & 0xfe00) == 0xfc00
                    || (first & 0xffc0) == 0xfe80
                    || (first & 0xffc0) == 0xfec0
            }
        },
    }
}

fn words(events: &[api::EventType]) -> Vec<String> {
    events.iter().map(|event| event.as_str().to_owned()).collect()
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    request: Request,
) -> Answered {
    let key = super::idempotency_key(request.headers())?;
    let body: api::CreateEndpoint = read(&app, request).await?;
    check_url(&app, &body.url)?;
    once(&app, tenant.key, "webhooks", key, &body.clone(), async {
        let mut secret = [0_u8; SECRET_BYTES];
        getrandom::fill(&mut secret).map_err(|_| Reject::unexpected())?;
        let secret = format!("{SECRET_PREFIX}{}", STANDARD.encode(secret));
        // Nothing that happened before is delivered.
        let cursor = app.read(|reader| reader.last_event()).await?.unwrap_or(EventId(0));
        let row = EndpointRow {
            id: app.ids.endpoint(),
            tenant: owner(&tenant),
            url: body.url,
            events: words(&body.events),
            description: body.description,
            secrets: vec![SigningSecret { secret: secret.clone(), valid_until: None }],
            disabled: None,
            created_at: wall(),
            cursor,
            failing_since: None,
        };
        put(&app, &tenant, Admin::PutEndpoint(row.clone())).await?;
        Ok(api::NewEndpoint { secret: Secret::new(secret), info: map::endpoint(row) })
    })
    .await
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Query(pairs): Query,
) -> Answered {
    let query = api::ListQuery::from_pairs(&pairs)?;
    let (rows, next) = slice(&query, own(&app, &tenant).await?, |row| row.id)?;
    Ok(page(rows.into_iter().map(map::endpoint).collect(), next))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let row = find(&app, &tenant, &id).await?;
    Ok(json(StatusCode::OK, &map::endpoint(row)))
}

pub(super) async fn patch(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let body: api::EndpointPatch = read(&app, request).await?;
    if let Some(url) = &body.url {
        check_url(&app, url)?;
    }
    let _one_at_a_time = app.changes.lock().await;
    let mut row = find(&app, &tenant, &id).await?;
    row.url = body.url.unwrap_or(row.url);
    row.description = body.description.unwrap_or(row.description);
    if let Some(events) = body.events {
        row.events = words(&events);
    }
    match body.enabled {
        Some(true) => (row.disabled, row.failing_since) = (None, None),
        Some(false) => row.disabled = Some("switched off by its owner".to_owned()),
        None => {}
    }
    put(&app, &tenant, Admin::PutEndpoint(row.clone())).await?;
    Ok(json(StatusCode::OK, &map::endpoint(row)))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let row = find(&app, &tenant, &id).await?;
    put(&app, &tenant, Admin::DropEndpoint(row.id)).await?;
    Ok(no_content())
}

/// Has a test event sent to the endpoint.
pub(super) async fn test(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let row = find(&app, &tenant, &id).await?;
    let event = EventRow {
        id: app.ids.event(),
        at: wall(),
        kind: api::EventType::EndpointTest.as_str().to_owned(),
        tenant: row.tenant,
        data: serde_json::json!({ "endpoint": row.id }),
    };
    if !app.shell.tests.push(row.id, event.clone()) {
        let detail = "too many test events wait to be delivered";
        return Err(Reject::new(RefusalCode::Overloaded, detail));
    }
    app.shell.events.send_replace(());
    Ok(json(StatusCode::ACCEPTED, &map::event(event)))
}

pub(super) async fn deliveries(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
    Query(pairs): Query,
) -> Answered {
    let query = api::ListQuery::from_pairs(&pairs)?;
    let before: Option<u64> = cursor(query.cursor.as_deref())?;
    let row = find(&app, &tenant, &id).await?;
    let limit = query.limit();
    let found = app.read(move |reader| reader.deliveries(row.id, before, limit)).await?;
    let next = found.next.map(|next| next.to_string());
    Ok(page(found.items.into_iter().map(map::delivery).collect(), next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_lead_inside_are_known() {
        for inside in [
            "127.0.0.1",
            "127.9.9.9",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "0.1.2.3",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
        ] {
            assert!(is_private(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["1.1.1.1", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8"]
        {
            assert!(!is_private(outside.parse().unwrap()), "{outside}");
        }
    }
}
