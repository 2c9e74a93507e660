//! What the tables are written with.

use super::{Access, AnswerBody, Kind, Method, Parameter, RequestBody, Route, Service};

pub(super) const fn route(
    method: Method,
    path: &'static str,
    id: &'static str,
    access: Access,
    kind: Kind,
    summary: &'static str,
    answers: &'static [(u16, AnswerBody)],
) -> Route {
    Route {
        method,
        path,
        id,
        service: Service::Cell,
        access,
        kind,
        summary,
        query: &[],
        body: RequestBody::None,
        answers,
        keyed: false,
    }
}

impl Route {
    pub(super) const fn body(mut self, schema: &'static str) -> Self {
        self.body = RequestBody::Needed(schema);
        self
    }

    pub(super) const fn optional_body(mut self, schema: &'static str) -> Self {
        self.body = RequestBody::Optional(schema);
        self
    }

    pub(super) const fn query(mut self, query: &'static [Parameter]) -> Self {
        self.query = query;
        self
    }

    pub(super) const fn keyed(mut self) -> Self {
        self.keyed = true;
        self
    }

    pub(super) const fn by(mut self, service: Service) -> Self {
        self.service = service;
        self
    }
}

pub(super) const fn parameter(
    name: &'static str,
    value: &'static str,
    about: &'static str,
) -> Parameter {
    Parameter { name, value, about, repeats: false, needed: false }
}

impl Parameter {
    pub(super) const fn repeats(mut self) -> Self {
        self.repeats = true;
        self
    }

    pub(super) const fn needed(mut self) -> Self {
        self.needed = true;
        self
    }
}

pub(super) const LIMIT: Parameter =
    parameter("limit", "integer", "Most rows: 1 to 1 000, 100 where absent.");
pub(super) const CURSOR: Parameter =
    parameter("cursor", "string", "`next_cursor` of the page before.");
pub(super) const OF_TENANT: Parameter =
    parameter("tenant", "string", "Only this tenant; operators only.");
pub(super) const OUTPUT_BYTES: Parameter =
    parameter("bytes", "integer", "Most bytes, the newest: 1 to 524 288, 65 536 where absent.");
pub(super) const FROM: Parameter = parameter("from", "string", "Not before this time.");
pub(super) const TO: Parameter = parameter("to", "string", "Before this time.");
pub(super) const PAGE: &[Parameter] = &[LIMIT, CURSOR];
pub(super) const ASYNC: &[Parameter] =
    &[parameter("async", "boolean", "Answer at once with `provisioning`, and not once it runs.")];

/// Tables one after the other. `N` is the sum of their lengths.
pub(super) const fn concat<const N: usize>(tables: &[&[Route]]) -> [Route; N] {
    let mut all = [tables[0][0]; N];
    let (mut table, mut row, mut at) = (0, 0, 0);
    while table < tables.len() {
        if row == tables[table].len() {
            table += 1;
            row = 0;
            continue;
        }
        all[at] = tables[table][row];
        at += 1;
        row += 1;
    }
    assert!(at == N, "every place of the table is filled");
    all
}
