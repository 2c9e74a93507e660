//! Routes open to all.

use super::Access::{Open, OpenUnlessClosed};
use super::AnswerBody::{One, Text};
use super::Kind::Plain;
use super::Method::Get;
use super::build::route;
use super::{Route, Service};

/// Routes open to all.
pub(super) const OPEN: &[Route] = &[
    route(
        Get,
        "/healthz",
        "healthz",
        Open,
        Plain,
        "Whether the process is alive",
        &[(200, Text("text/plain"))],
    )
    .by(Service::Both),
    route(
        Get,
        "/readyz",
        "is_ready",
        Open,
        Plain,
        "Whether state is loaded and this replica leads",
        &[(200, Text("text/plain")), (503, One("Problem"))],
    ),
    route(
        Get,
        "/metrics",
        "metrics",
        OpenUnlessClosed,
        Plain,
        "Metrics in the exposition format of Prometheus",
        &[(200, Text("text/plain"))],
    )
    .by(Service::Both),
    route(
        Get,
        "/openapi.json",
        "openapi",
        Open,
        Plain,
        "This document",
        &[(200, Text("application/json"))],
    ),
    route(Get, "/docs", "docs", Open, Plain, "This document, to read", &[(200, Text("text/html"))]),
    route(
        Get,
        "/",
        "dashboard",
        Open,
        Plain,
        "The dashboard; it needs a key to show data",
        &[(200, Text("text/html"))],
    ),
];
