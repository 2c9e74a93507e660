//! Answers: JSON bodies and problems.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use plimsoll_api::{DECISION_HEADER, FieldError, PROBLEM_CONTENT_TYPE, Page, Problem, ProblemCode};
use plimsoll_engine::Refusal;
use plimsoll_types::{DecisionId, RefusalCode};
use serde::Serialize;

use crate::core::NoAnswer;

/// What a handler comes back with.
pub(crate) type Answered = Result<Response, Reject>;

/// A no, on its way out.
#[derive(Debug)]
pub(crate) struct Reject {
    /// What is answered.
    pub(crate) problem: Box<Problem>,
    /// Whether it is a decision of the engine, and counted as such.
    by_engine: bool,
}

/// Goes with an answer that refuses outside the engine, for the listener to count.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedOutside(pub(super) RefusalCode);

impl Reject {
    /// A no of this code.
    pub(crate) fn new(code: impl Into<ProblemCode>, detail: impl Into<String>) -> Self {
        Self::from(Problem::new(code, detail))
    }

    /// No such object, or not the caller's.
    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(RefusalCode::NotFound, format!("there is no such {what}"))
    }

    /// The engine answered with something that does not belong to the question: a fault of the
    /// cell's own.
    pub(crate) fn unexpected() -> Self {
        tracing::error!("the engine's reply does not belong to its question");
        Self::new(ProblemCode::Internal, "the cell failed to answer; the fault is logged")
    }
}

impl From<Problem> for Reject {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), by_engine: false }
    }
}

impl From<FieldError> for Reject {
    fn from(error: FieldError) -> Self {
        Self::from(Problem::from(error))
    }
}

impl From<NoAnswer> for Reject {
    fn from(why: NoAnswer) -> Self {
        let code = match why {
            NoAnswer::Overloaded => RefusalCode::Overloaded,
            NoAnswer::StoreUnavailable => RefusalCode::StoreUnavailable,
            NoAnswer::Loading | NoAnswer::NotLeader | NoAnswer::Stopping => RefusalCode::NotLeader,
        };
        Self::new(code, why.to_string())
    }
}

impl From<Refusal> for Reject {
    fn from(refusal: Refusal) -> Self {
        // What is decided is counted where it is; what a call is merely told is not.
        let by_engine = refusal.decision.is_some();
        let mut problem = Problem::new(refusal.code, refusal.detail).with_retry(refusal.retry);
        problem.decision_id = refusal.decision;
        problem.counts = refusal.counts;
        problem.unprobed = refusal.unprobed;
        (problem.starts_in_flight, problem.starts_limit) = refusal.starts.unzip();
        if let Some((field, bound)) = refusal.field {
            problem.field = Some(field.to_owned());
            problem.bound = Some(bound);
        }
        if let Some(limit) = refusal.limit {
            problem.counter = Some(limit.name.to_owned());
            problem.limit = Some(limit.limit);
            problem.used = Some(limit.used);
            problem.incoming = Some(limit.incoming);
        }
        problem.largest_host_memory_mib = refusal.largest_host_mib.map(|mib| mib.get());
        problem.known = refusal.known;
        problem.resets_at = refusal.resets_at.map(Into::into);
        Self { problem: Box::new(problem), by_engine }
    }
}

impl IntoResponse for Reject {
    fn into_response(self) -> Response {
        let Self { problem, by_engine } = self;
        let status = StatusCode::from_u16(problem.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = body(status, PROBLEM_CONTENT_TYPE, &*problem);
        if !by_engine && let Some(code) = problem.code.refusal() {
            response.extensions_mut().insert(RefusedOutside(code));
        }
        let headers = response.headers_mut();
        if let Some(seconds) = problem.retry_after_seconds() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        match problem.decision_id {
            Some(decision) => with_decision(response, decision),
            None => response,
        }
    }
}

fn body(status: StatusCode, kind: &'static str, value: &impl Serialize) -> Response {
    let bytes = match serde_json::to_vec(value) {
        Ok(bytes) => bytes,
        Err(error) => {
            // Bodies are plain structs with text keys; there is nothing in them that JSON cannot
            // say. Should that ever fail, the caller still gets an answer.
            tracing::error!(%error, "a body could not be written");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    body(status, "application/json", value)
}

/// An answer without a body.
pub(crate) fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// A page of a list.
pub(crate) fn page<T: Serialize>(items: Vec<T>, next_cursor: Option<String>) -> Response {
    json(StatusCode::OK, &Page { items, next_cursor })
}

/// The same answer with the decision's id in its header.
pub(crate) fn with_decision(mut response: Response, decision: DecisionId) -> Response {
    const NAME: HeaderName = HeaderName::from_static("plimsoll-decision");
    debug_assert!(NAME.as_str().eq_ignore_ascii_case(DECISION_HEADER));
    // An id is letters, digits and an underscore.
    if let Ok(value) = HeaderValue::try_from(decision.to_string()) {
        response.headers_mut().insert(NAME, value);
    }
    response
}
