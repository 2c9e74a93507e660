//! The OpenAPI 3.1 document, made from the table of routes and the types of the bodies.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

use plimsoll_types::RefusalCode;

use crate::input::{IDEMPOTENCY_KEY_HEADER, TENANT_HEADER};
use crate::problem::{DECISION_HEADER, PROBLEM_CONTENT_TYPE, RetryKind, refusal};
use crate::routes::{Access, AnswerBody, Kind, ROUTES, RequestBody, Route, Service};
use crate::schema;

/// The whole document.
#[must_use]
pub fn document() -> Value {
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in ROUTES {
        let method = route.method.as_str().to_ascii_lowercase();
        paths.entry(route.path).or_default().insert(method, operation(route));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Plimsoll",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The load line for sandbox fleets: whether a create may go ahead, and \
                where. Times are RFC 3339 in UTC, quantities are integers, and units stand in the \
                names. Unknown fields of requests are refused with their name, but for those of \
                hosts. Refusals are problem+json: programs decide by `code`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of role tenant, operator or host.",
                },
                "host_secret": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The secret of one host, between its agent and its cell.",
                },
            },
        },
        "tags": [
            {"name": "cell", "description": "Served by every replica of a cell."},
            {"name": "agent", "description": "Served by the agent of each host, for its cell."},
        ],
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = Map::new();
    let tags: &[&str] = match route.service {
        Service::Cell => &["cell"],
        Service::Agent => &["agent"],
        Service::Both => &["cell", "agent"],
    };
    operation.insert("tags".into(), json!(tags));
    operation.insert("operationId".into(), json!(route.id));
    operation.insert("summary".into(), json!(route.summary));
    operation.insert("description".into(), json!(format!("Open to: {}.", route.access.as_str())));
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation.insert("parameters".into(), Value::Array(parameters));
    }
    let body = match route.body {
        RequestBody::None => None,
        RequestBody::Needed(name) => Some((true, name)),
        RequestBody::Optional(name) => Some((false, name)),
    };
    if let Some((required, name)) = body {
        let content = json!({"application/json": {"schema": reference(name)}});
        operation.insert("requestBody".into(), json!({"required": required, "content": content}));
    }
    operation.insert("responses".into(), Value::Object(responses(route)));
    let security = match route.access {
        Access::Open | Access::OpenUnlessClosed => json!([]),
        Access::Tenant | Access::Operator | Access::Host => json!([{"key": []}]),
        Access::Secret => json!([{"host_secret": []}]),
    };
    operation.insert("security".into(), security);
    Value::Object(operation)
}

fn parameters(route: &Route) -> Vec<Value> {
    let mut parameters = Vec::new();
    let in_path =
        route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    for name in in_path {
        parameters.push(json!({
            "name": name, "in": "path", "required": true, "schema": {"type": "string"},
        }));
    }
    for parameter in route.query {
        let one = json!({"type": parameter.value});
        let schema = if parameter.repeats { json!({"type": "array", "items": one}) } else { one };
        parameters.push(json!({
            "name": parameter.name,
            "in": "query",
            "required": parameter.needed,
            "description": parameter.about,
            "schema": schema,
        }));
    }
    if route.keyed {
        parameters.push(json!({
            "name": IDEMPOTENCY_KEY_HEADER,
            "in": "header",
            "required": false,
            "description": "Once accepted, the same key and body give the same object, for 24 h \
                and while it lives; the same key with another body is a conflict.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        }));
    }
    if route.access == Access::Tenant {
        parameters.push(json!({
            "name": TENANT_HEADER,
            "in": "header",
            "required": false,
            "description": "For an operator's key: the tenant to act for.",
            "schema": {"type": "string"},
        }));
    }
    parameters
}

fn responses(route: &Route) -> Map<String, Value> {
    let mut responses = Map::new();
    for (status, body) in route.answers {
        let (about, media, schema) = match body {
            AnswerBody::None => ("Done", None, json!({})),
            AnswerBody::One(name) => (*name, Some("application/json"), reference(name)),
            AnswerBody::Page(name) => ("A page of them", Some("application/json"), page(name)),
            AnswerBody::Either(names) => {
                let any: Vec<Value> = names.iter().map(|name| reference(name)).collect();
                ("One of these", Some("application/json"), json!({"anyOf": any}))
            }
            AnswerBody::Text(media) => ("Text", Some(*media), json!({"type": "string"})),
        };
        let media = media.map(|media| if *status >= 400 { PROBLEM_CONTENT_TYPE } else { media });
        let mut response = json!({"description": about});
        if let Some(media) = media {
            response["content"] = json!({media: {"schema": schema}});
        }
        if matches!(route.kind, Kind::Admit | Kind::Wake) {
            response["headers"] = json!({DECISION_HEADER: decision_header()});
        }
        responses.insert(status.to_string(), response);
    }
    let mut by_status: BTreeMap<u16, Vec<RefusalCode>> = BTreeMap::new();
    for code in route.kind.refusals() {
        by_status.entry(refusal(*code).status).or_default().push(*code);
    }
    for (status, codes) in by_status {
        let words: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
        let mut content = json!({PROBLEM_CONTENT_TYPE: {"schema": reference("Problem")}});
        if route.kind == Kind::Command {
            // What a host makes of a command is an outcome, whatever its status.
            content["application/json"] = json!({"schema": reference("HostOutcome")});
        }
        let mut response = json!({"description": words.join(", "), "content": content});
        if codes.iter().any(|code| refusal(*code).retry == RetryKind::After) {
            response["headers"] = json!({"Retry-After": {
                "description": "Whole seconds, rounded up, at least 1.",
                "schema": {"type": "integer", "minimum": 1},
            }});
        }
        responses.entry(status.to_string()).or_insert(response);
    }
    responses
}

fn decision_header() -> Value {
    json!({"description": "The decision behind the answer.", "schema": {"type": "string"}})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn page(name: &str) -> Value {
    json!({
        "type": "object",
        "required": ["items", "next_cursor"],
        "properties": {
            "items": {"type": "array", "items": reference(name)},
            "next_cursor": {"type": ["string", "null"]},
        },
    })
}

/// Every schema that routes name, with all that these refer to.
fn schemas() -> BTreeMap<String, RefOr<Schema>> {
    fn add<T: ToSchema>(found: &mut Vec<(String, RefOr<Schema>)>) {
        found.push((T::name().into_owned(), T::schema()));
        T::schemas(found);
    }
    macro_rules! all {
        ($($type:ty),* $(,)?) => {{
            let mut found = Vec::new();
            $(add::<$type>(&mut found);)*
            found
        }};
    }
    let found = all!(
        crate::CreateEndpoint,
        crate::CreateKey,
        crate::EnrolHost,
        crate::CreateSandbox,
        crate::CreateTenant,
        crate::CommitReservation,
        crate::DecisionView,
        crate::Delivery,
        crate::DryRun,
        crate::Endpoint,
        crate::EndpointPatch,
        crate::Envelope,
        crate::Event,
        crate::ExecRequest,
        crate::ExecResponse,
        crate::SandboxLogs,
        crate::ExplainRequest,
        crate::Explanation,
        crate::ForkSandbox,
        crate::GuestExec,
        crate::Heartbeat,
        crate::HostView,
        crate::Key,
        crate::LimitsPatch,
        crate::NewEndpoint,
        crate::NewKey,
        crate::PatchSandbox,
        crate::PatchedEndpoint,
        crate::Plan,
        crate::PolicyView,
        crate::Pool,
        crate::PoolPatch,
        crate::Problem,
        crate::QuotaView,
        crate::RegisterAnswer,
        crate::RegisterHost,
        crate::RenewReservation,
        crate::Reservation,
        crate::ReservationBatch,
        crate::Reservations,
        crate::ReserveRequest,
        crate::Sandbox,
        crate::Status,
        crate::Template,
        crate::TemplatePatch,
        crate::Tenant,
        crate::TenantPatch,
        crate::UsageRow,
        schema::HeartbeatAnswer,
        schema::HostCommand,
        schema::HostOutcome,
    );
    found.into_iter().collect()
}

#[cfg(test)]
mod tests;
