//! Who calls, and whether the route is theirs.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use plimsoll_api::FieldError;
use plimsoll_engine::Caller;
use plimsoll_engine::rows::Role;
use plimsoll_types::{HostId, KeyId, RefusalCode, TenantId};

use super::Reject;
use crate::app::App;
use crate::auth::Principal;

/// An operator names the tenant that it acts for in this header; without it, the default one.
const TENANT_HEADER: &str = "Plimsoll-Tenant";

fn principal(app: &App, headers: &HeaderMap) -> Result<Arc<Principal>, Reject> {
    let unauthenticated = |detail: &str| Reject::new(RefusalCode::Unauthenticated, detail);
    let Some(value) = headers.get(AUTHORIZATION) else {
        return Err(unauthenticated("a key is needed: Authorization: Bearer <key>"));
    };
    let text = value.to_str().unwrap_or_default();
    let key = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let Some((_, key)) = key else {
        return Err(unauthenticated("the Authorization header must read: Bearer <key>"));
    };
    if let Some(principal) = app.shell.keys.find(key.trim()) {
        return Ok(principal);
    }
    // Before the keys are loaded, no key is known; that says nothing about this one.
    app.check_leading()?;
    Err(unauthenticated("this key is not known"))
}

fn forbidden(role: Role, whose: &str) -> Reject {
    let detail = format!("a key of role {} cannot call this; it is for {whose}", role.as_str());
    Reject::new(RefusalCode::Forbidden, detail)
}

/// The tenant that an operator names, where it does.
fn named_tenant(headers: &HeaderMap) -> Result<Option<TenantId>, Reject> {
    let Some(value) = headers.get(TENANT_HEADER) else { return Ok(None) };
    let text = value.to_str().unwrap_or("?");
    match text.parse() {
        Ok(tenant) => Ok(Some(tenant)),
        Err(error) => {
            let error: plimsoll_types::NameError = error;
            Err(FieldError::new(TENANT_HEADER, text, error.to_string()).into())
        }
    }
}

/// Who calls a route of tenants: a tenant, or an operator who acts for one.
///
/// # Errors
/// When there is no known key, or it is a host's.
pub(crate) fn caller_of(app: &App, headers: &HeaderMap) -> Result<Tenant, Reject> {
    let principal = principal(app, headers)?;
    match (principal.role, &principal.tenant) {
        (Role::Tenant, Some(tenant)) => {
            principal.count();
            let caller = Caller { role: Role::Tenant, tenant: tenant.clone() };
            Ok(Tenant { key: principal.key, caller, named: true })
        }
        (Role::Operator, _) => {
            let named = named_tenant(headers)?;
            let is_named = named.is_some();
            let tenant = named.unwrap_or_else(|| app.config.engine.default_tenant.clone());
            let caller = Caller { role: Role::Operator, tenant };
            Ok(Tenant { key: principal.key, caller, named: is_named })
        }
        (role, _) => Err(forbidden(role, "tenants and operators")),
    }
}

/// A tenant, or an operator who acts for one.
pub(crate) struct Tenant {
    /// Under which key.
    pub(crate) key: KeyId,
    /// Who asks.
    pub(crate) caller: Caller,
    /// Whether the tenant was named, by the key or by the operator; if not, an operator's list is
    /// of all tenants.
    pub(crate) named: bool,
}

impl Tenant {
    /// Whether hosts may be shown.
    pub(crate) fn sees_hosts(&self) -> bool {
        self.caller.role == Role::Operator
    }
}

impl FromRequestParts<Arc<App>> for Tenant {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Reject> {
        caller_of(app, &parts.headers)
    }
}

/// An operator.
pub(crate) struct Operator {
    /// Under which key.
    pub(crate) key: KeyId,
    /// Who asks.
    pub(crate) caller: Caller,
}

impl FromRequestParts<Arc<App>> for Operator {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Reject> {
        let principal = principal(app, &parts.headers)?;
        if principal.role != Role::Operator {
            return Err(forbidden(principal.role, "operators"));
        }
        let tenant = named_tenant(&parts.headers)?
            .unwrap_or_else(|| app.config.engine.default_tenant.clone());
        Ok(Self { key: principal.key, caller: Caller { role: Role::Operator, tenant } })
    }
}

/// Somebody who may speak for hosts: a host, or an operator in its place.
pub(crate) struct Host(Arc<Principal>);

impl Host {
    /// Checks that the key speaks for this host.
    ///
    /// # Errors
    /// When it is another's.
    pub(crate) fn check(&self, app: &App, host: &HostId) -> Result<(), Reject> {
        match (&self.0.host, self.0.role) {
            (_, Role::Operator) => Ok(()),
            (Some(own), _) if own == host => Ok(()),
            (None, _) if !app.config.require_enrolment => Ok(()),
            (None, _) => Err(Reject::new(
                RefusalCode::Forbidden,
                "this cell takes heartbeats under a key of the host's own; make one with POST \
                 /v1/admin/keys",
            )),
            (Some(_), _) => {
                Err(Reject::new(RefusalCode::Forbidden, "this key speaks for another host"))
            }
        }
    }
}

impl FromRequestParts<Arc<App>> for Host {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Reject> {
        let principal = principal(app, &parts.headers)?;
        match principal.role {
            Role::Host | Role::Operator => Ok(Self(principal)),
            Role::Tenant => Err(forbidden(Role::Tenant, "hosts")),
        }
    }
}
