//! Every route of the table is served, to those whom the table names, and no other is.

use axum::http::Method;
use plimsoll_api::{Access, ROUTES, Role, Route};
use serde_json::{Value, json};

use super::Tested;

fn routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(|route| route.is_of_cell())
}

/// The path with something in it that is not there.
fn path(route: &Route) -> String {
    let id = match route.path {
        path if path.starts_with("/v1/sandboxes") => "sbx_00000000000000000000000000",
        path if path.starts_with("/v1/reservations") => "rsv_00000000000000000000000000",
        path if path.starts_with("/v1/webhooks") => "whe_00000000000000000000000000",
        path if path.starts_with("/v1/admin/keys") => "key_00000000000000000000000000",
        path if path.starts_with("/v1/admin/decisions") => "dec_00000000000000000000000000",
        _ => "nothing",
    };
    let parts: Vec<&str> =
        route.path.split('/').map(|part| if part.starts_with('{') { id } else { part }).collect();
    parts.join("/")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_route_is_served_to_whom_the_table_names() {
    let cell = Tested::memory().await;
    for route in routes() {
        let method: Method = route.method.as_str().parse().unwrap();
        let what = format!("{method} {}", route.path);
        let bare = Tested::send(cell.request(method.clone(), &path(route))).await;
        let open = matches!(route.access, Access::Open | Access::OpenUnlessClosed);
        assert_eq!(bare.status == 401, !open, "{what}: {}", bare.text);
        for (key, role) in
            [("tenant-default", Role::Tenant), ("operator", Role::Operator), ("host", Role::Host)]
        {
            let answer = cell.call(key, method.clone(), &path(route), None).await;
            let status = answer.status.as_u16();
            assert_eq!(status != 403, route.access.allows(role), "{what} as {role:?}: {status}");
            assert_ne!(status, 405, "{what} is not served");
            assert_ne!(status, 500, "{what}: {}", answer.text);
            let no_route = answer.text.contains("no such route");
            assert!(!no_route, "{what} is not served");
        }
    }
}

/// The methods that the table does not name are refused on its paths.
#[tokio::test(flavor = "multi_thread")]
async fn no_other_method_is_served() {
    let cell = Tested::memory().await;
    let mut paths: Vec<&str> = routes().map(|route| route.path).collect();
    paths.sort_unstable();
    paths.dedup();
    for path_of in paths {
        let route = routes().find(|route| route.path == path_of).unwrap();
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let named =
                routes().any(|route| route.path == path_of && route.method.as_str() == method);
            if named {
                continue;
            }
            let method: Method = method.parse().unwrap();
            let answer = cell.admin(method.clone(), &path(route), Value::Null).await;
            assert_eq!(answer.status, 405, "{method} {path_of}: {}", answer.text);
            assert_eq!(answer.code(), "method_not_allowed");
        }
    }
}

/// What the document says of statuses is what the cell answers.
#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_served_and_holds_every_route() {
    let cell = Tested::memory().await;
    let document = Tested::send(cell.request(Method::GET, "/openapi.json")).await.expect(200).body;
    for route in routes() {
        let method = route.method.as_str().to_ascii_lowercase();
        let operation = &document["paths"][route.path][&method];
        assert!(operation.is_object(), "{method} {}", route.path);
    }
    let made = cell.admin(Method::POST, "/v1/admin/plans", json!({ "id": "p" })).await.expect(201);
    let schema = &document["components"]["schemas"]["Plan"]["properties"];
    for name in made.body.as_object().unwrap().keys() {
        assert!(schema[name].is_object(), "the document does not know {name} of a plan");
    }
}
