use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::plan::Role;

/// The routes of the contract, as it writes them.
const CONTRACT: &[&str] = &[
    "POST /v1/sandboxes",
    "GET /v1/sandboxes",
    "GET /v1/sandboxes/{id}",
    "PATCH /v1/sandboxes/{id}",
    "DELETE /v1/sandboxes/{id}",
    "POST /v1/sandboxes/{id}/pause",
    "POST /v1/sandboxes/{id}/resume",
    "POST /v1/sandboxes/{id}/stop",
    "POST /v1/sandboxes/{id}/start",
    "POST /v1/sandboxes/{id}/keepalive",
    "POST /v1/sandboxes/{id}/exec",
    "POST /v1/sandboxes/{id}/fork",
    "GET /v1/sandboxes/{id}/wait",
    "POST /v1/reservations",
    "POST /v1/reservations/batch",
    "POST /v1/reservations/{id}/commit",
    "POST /v1/reservations/{id}/renew",
    "DELETE /v1/reservations/{id}",
    "POST /v1/explain",
    "POST /v1/hosts/{host}/heartbeat",
    "GET /v1/quota",
    "GET /v1/usage",
    "POST /v1/webhooks/endpoints",
    "GET /v1/webhooks/endpoints",
    "GET /v1/webhooks/endpoints/{id}",
    "PATCH /v1/webhooks/endpoints/{id}",
    "DELETE /v1/webhooks/endpoints/{id}",
    "POST /v1/webhooks/endpoints/{id}/test",
    "GET /v1/webhooks/endpoints/{id}/deliveries",
    "GET /v1/events",
    "GET /v1/admin/plans",
    "GET /v1/admin/plans/{id}",
    "POST /v1/admin/plans",
    "PATCH /v1/admin/plans/{id}",
    "DELETE /v1/admin/plans/{id}",
    "GET /v1/admin/tenants",
    "GET /v1/admin/tenants/{id}",
    "POST /v1/admin/tenants",
    "PATCH /v1/admin/tenants/{id}",
    "DELETE /v1/admin/tenants/{id}",
    "GET /v1/admin/keys",
    "POST /v1/admin/keys",
    "GET /v1/admin/keys/{id}",
    "DELETE /v1/admin/keys/{id}",
    "GET /v1/admin/pools",
    "GET /v1/admin/pools/{name}",
    "POST /v1/admin/pools",
    "PATCH /v1/admin/pools/{name}",
    "DELETE /v1/admin/pools/{name}",
    "GET /v1/admin/templates",
    "GET /v1/admin/templates/{name}",
    "POST /v1/admin/templates",
    "PATCH /v1/admin/templates/{name}",
    "DELETE /v1/admin/templates/{name}",
    "GET /v1/admin/hosts",
    "GET /v1/admin/hosts/{id}",
    "POST /v1/admin/hosts/{id}/drain",
    "POST /v1/admin/hosts/{id}/undrain",
    "GET /v1/admin/decisions",
    "GET /v1/admin/decisions/{id}",
    "PUT /v1/admin/policy",
    "GET /v1/admin/policy",
    "GET /v1/admin/status",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
    "GET /openapi.json",
    "GET /docs",
    "GET /",
    "GET /v1/capacity",
    "POST /v1/guests",
    "POST /v1/guests/{id}/pause",
    "POST /v1/guests/{id}/resume",
    "POST /v1/guests/{id}/exec",
    "DELETE /v1/guests/{id}",
];

/// Routes beside the contract, which may be added freely.
const ADDED: &[&str] = &[
    "GET /v1/sandboxes/{id}/logs",
    "GET /v1/guests/{id}/logs",
    "GET /v1/reservations/{id}",
    "POST /v1/hosts/{host}/register",
    "POST /v1/admin/hosts",
    "DELETE /v1/admin/hosts/{id}",
    "DELETE /v1/admin/hosts/{id}/guests/{guest}",
    "POST /v1/guests/{id}/stop",
];

#[test]
fn the_document_has_the_routes_of_the_contract_and_no_others() {
    let document = document();
    let mut held = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            held.insert(format!("{} {path}", method.to_uppercase()));
        }
    }
    let expected: BTreeSet<String> =
        CONTRACT.iter().chain(ADDED).map(ToString::to_string).collect();
    assert_eq!(held, expected);
    assert_eq!(held.len(), ROUTES.len(), "no route stands in the table twice");
}

#[test]
fn every_reference_leads_somewhere() {
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    match member {
                        Value::String(to) if name == "$ref" => {
                            found.insert(to.clone());
                        }
                        member => references(member, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 40);
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[test]
fn operations_have_ids_of_their_own_and_paths_their_parameters() {
    let ids: BTreeSet<_> = ROUTES.iter().map(|route| route.id).collect();
    assert_eq!(ids.len(), ROUTES.len());
    for route in ROUTES {
        let operation = operation(route);
        let in_path = operation["parameters"].as_array().map_or(0, |parameters| {
            parameters.iter().filter(|parameter| parameter["in"] == "path").count()
        });
        assert_eq!(in_path, route.path.matches('{').count(), "{}", route.path);
        assert!(!operation["responses"].as_object().unwrap().is_empty());
    }
}

#[test]
fn refusals_state_status_and_retry_after() {
    let document = document();
    let create = &document["paths"]["/v1/sandboxes"]["post"]["responses"];
    assert_eq!(
        create["503"]["description"],
        "no_capacity, no_healthy_hosts, host_starts_saturated, host_pressure, degraded, \
         overloaded, not_leader, store_unavailable"
    );
    assert!(create["503"]["headers"]["Retry-After"].is_object());
    assert!(create["429"]["headers"]["Retry-After"].is_object());
    assert!(create["403"]["headers"].is_null());
    let problem = &create["422"]["content"][PROBLEM_CONTENT_TYPE]["schema"]["$ref"];
    assert_eq!(problem, "#/components/schemas/Problem");
    let wait = &document["paths"]["/v1/sandboxes/{id}/wait"]["get"]["responses"]["408"];
    assert!(wait["content"][PROBLEM_CONTENT_TYPE].is_object());
}

#[test]
fn roles_open_what_they_should() {
    let allowed = |role: Role| {
        let cells = ROUTES.iter().filter(|route| route.is_of_cell());
        cells.filter(|route| route.access.allows(role)).count()
    };
    let cells = ROUTES.iter().filter(|route| route.is_of_cell()).count();
    assert_eq!(allowed(Role::Operator), cells, "an operator may do all that a cell serves");
    for route in ROUTES {
        let path = route.path;
        assert_eq!(route.access == Access::Operator, path.starts_with("/v1/admin/"), "{path}");
        assert_eq!(route.access == Access::Host, path.starts_with("/v1/hosts/"), "{path}");
        assert_eq!(route.access == Access::Secret, route.service == Service::Agent, "{path}");
        let creates = route.method == crate::routes::Method::Post
            && route.answers.iter().any(|(status, _)| *status == 201);
        let own_key = path.starts_with("/v1/reservations");
        assert_eq!(route.keyed, creates && !own_key, "{path}");
    }
}

/// The whole surface, a line for each route: a change of it is a change of this file.
#[test]
fn surface() {
    let lines: Vec<String> = ROUTES
        .iter()
        .map(|route| {
            let query: Vec<_> = route.query.iter().map(|parameter| parameter.name).collect();
            let query =
                if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
            let body = match route.body {
                RequestBody::None => String::new(),
                RequestBody::Needed(name) => format!(" {name}"),
                RequestBody::Optional(name) => format!(" [{name}]"),
            };
            let answers: Vec<_> = route
                .answers
                .iter()
                .map(|(status, body)| match body {
                    AnswerBody::None => status.to_string(),
                    AnswerBody::One(name) => format!("{status} {name}"),
                    AnswerBody::Page(name) => format!("{status} page of {name}"),
                    AnswerBody::Either(names) => format!("{status} {}", names.join(" or ")),
                    AnswerBody::Text(media) => format!("{status} {media}"),
                })
                .collect();
            format!(
                "{} {}{query} ({}){body} -> {}",
                route.method.as_str(),
                route.path,
                route.access.as_str(),
                answers.join(", ")
            )
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn events_and_the_rotation_of_secrets_are_explained() {
    let schemas = &document()["components"]["schemas"];
    let events = schemas["EventType"]["description"].as_str().unwrap();
    for event in crate::webhook::EventType::ALL {
        assert!(events.contains(&format!("- `{event}`: ")), "{event} in {events}");
    }
    assert!(events.contains("410 Gone"), "{events}");
    let rotate = &schemas["EndpointPatch"]["properties"]["rotate_secret"];
    assert!(rotate["description"].as_str().unwrap().contains("24 hours"), "{rotate}");
}

/// The members of every schema: what a client may rely on.
#[test]
fn members() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let members: BTreeMap<&String, Vec<String>> = schemas
        .iter()
        .map(|(name, schema)| {
            let required: BTreeSet<&str> = schema["required"]
                .as_array()
                .map(|names| names.iter().filter_map(Value::as_str).collect())
                .unwrap_or_default();
            let mut members: Vec<String> = Vec::new();
            if let Some(properties) = schema["properties"].as_object() {
                members.extend(properties.keys().map(|member| {
                    let mark = if required.contains(member.as_str()) { "" } else { "?" };
                    format!("{member}{mark}")
                }));
            }
            if let Some(words) = schema["enum"].as_array() {
                members.extend(words.iter().filter_map(Value::as_str).map(ToOwned::to_owned));
            }
            (name, members)
        })
        .collect();
    insta::assert_json_snapshot!(members);
}
