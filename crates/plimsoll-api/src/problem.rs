//! Saying no: the problem body and the one table from code to status, retry and who acts.

mod table;

use std::fmt;

use plimsoll_types::{DecisionId, FilterCounts, Millis, RefusalCode, RetryHint};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::input::FieldError;
use crate::sandbox::Sandbox;
use crate::schema;
use crate::time::Time;

pub use table::{Acts, Refusal, RetryKind, refusal};

/// The media type of every error body.
pub const PROBLEM_CONTENT_TYPE: &str = "application/problem+json";
/// The header that carries the decision's id on every verdict, yes or no.
pub const DECISION_HEADER: &str = "Plimsoll-Decision";

/// What `type` of a problem starts with; the code follows. A URN, because the code is the
/// identity and no page need stand behind it.
const TYPE_PREFIX: &str = "urn:plimsoll:problem:";

/// `Retry-After` in whole seconds: rounded up and at least 1, so that no caller returns before
/// the estimate and none is told "at once".
///
/// ```
/// use plimsoll_api::retry_after_seconds;
/// use plimsoll_types::Millis;
///
/// assert_eq!(retry_after_seconds(Millis(0)), 1);
/// assert_eq!(retry_after_seconds(Millis(1001)), 2);
/// ```
#[must_use]
pub const fn retry_after_seconds(wait: Millis) -> u64 {
    let seconds = wait.seconds_ceil();
    if seconds == 0 { 1 } else { seconds }
}

/// The `code` of a problem: a refusal of the table, or one of the few answers that refuse nothing
/// and yet are no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProblemCode {
    /// A refusal.
    Refusal(RefusalCode),
    /// The long poll ended before the state was reached (408); the record stands under `sandbox`.
    WaitTimeout,
    /// The path exists, the method does not (405).
    MethodNotAllowed,
    /// A fault of the service itself (500).
    Internal,
    /// A code that this version does not know.
    Other(String),
}

impl ProblemCode {
    /// The code as the wire carries it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Refusal(code) => code.as_str(),
            Self::WaitTimeout => "wait_timeout",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::Internal => "internal",
            Self::Other(code) => code,
        }
    }

    /// The refusal, where it is one.
    #[must_use]
    pub const fn refusal(&self) -> Option<RefusalCode> {
        match self {
            Self::Refusal(code) => Some(*code),
            _ => None,
        }
    }

    /// The status and title that go with it.
    const fn status_and_title(&self) -> (u16, &'static str) {
        match self {
            Self::Refusal(code) => {
                let row = refusal(*code);
                (row.status, row.title)
            }
            Self::WaitTimeout => (408, "The state was not reached in time"),
            Self::MethodNotAllowed => (405, "The route does not take this method"),
            Self::Internal | Self::Other(_) => (500, "The service failed"),
        }
    }
}

impl fmt::Display for ProblemCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<RefusalCode> for ProblemCode {
    fn from(code: RefusalCode) -> Self {
        Self::Refusal(code)
    }
}

impl Serialize for ProblemCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ProblemCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if let Ok(code) = text.parse() {
            return Ok(Self::Refusal(code));
        }
        Ok(match text.as_str() {
            "wait_timeout" => Self::WaitTimeout,
            "method_not_allowed" => Self::MethodNotAllowed,
            "internal" => Self::Internal,
            _ => Self::Other(text),
        })
    }
}

/// An error body as RFC 9457 has it, with what this service adds. Absent members do not apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Identity of the problem: a URN that ends in the code.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// What the code means, the same for every problem of it.
    #[serde(default)]
    pub title: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// What happened this time, for people.
    #[serde(default)]
    pub detail: String,
    /// What programs decide by.
    #[schema(value_type = schema::ProblemCodes)]
    pub code: ProblemCode,
    /// When trying again makes sense, by estimate or exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_millis: Option<u64>,
    /// The decision, which `/v1/admin/decisions/{id}` opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub decision_id: Option<DecisionId>,
    /// Bad input: the path of the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Bad input: what stood there, shortened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<String>,
    /// Bad input: what may stand there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<String>,
    /// How many hosts fell to each filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::FilterCounts>)]
    pub counts: Option<FilterCounts>,
    /// Stale, unknown or set-aside hosts were not asked afresh, because too many callers wait for
    /// such answers already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unprobed: bool,
    /// The largest host known in the eligible pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_host_memory_mib: Option<u64>,
    /// Which limit was met, such as `concurrency.vcpus` or `rate.creates_per_minute`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter: Option<String>,
    /// That limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// What is used of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// What the request would add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incoming: Option<u64>,
    /// When the period ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<Time>,
    /// Starts under way on the hosts that would fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_in_flight: Option<u64>,
    /// Most starts at once on these hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_limit: Option<u64>,
    /// Names that exist, where an unknown one was given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<String>,
    /// Where the leader answers, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The record as it stands, in the 408 of `wait`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<Sandbox>>,
}

impl Problem {
    /// A problem of the given code, with the status and title that the table has for it.
    #[must_use]
    pub fn new(code: impl Into<ProblemCode>, detail: impl Into<String>) -> Self {
        let code = code.into();
        let (status, title) = code.status_and_title();
        Self {
            kind: format!("{TYPE_PREFIX}{code}"),
            title: title.to_owned(),
            status,
            detail: detail.into(),
            code,
            retry_after_millis: None,
            decision_id: None,
            field: None,
            given: None,
            bound: None,
            counts: None,
            unprobed: false,
            largest_host_memory_mib: None,
            counter: None,
            limit: None,
            used: None,
            incoming: None,
            resets_at: None,
            starts_in_flight: None,
            starts_limit: None,
            known: Vec::new(),
            leader: None,
            sandbox: None,
        }
    }

    /// The 408 of a long poll.
    #[must_use]
    pub fn wait_timeout(sandbox: Sandbox, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(ProblemCode::WaitTimeout, detail);
        problem.sandbox = Some(Box::new(sandbox));
        problem
    }

    /// With the decision behind it.
    #[must_use]
    pub fn with_decision(mut self, id: DecisionId) -> Self {
        self.decision_id = Some(id);
        self
    }

    /// With when to try again. A code whose retry is "never" takes no such hint.
    #[must_use]
    pub fn with_retry(mut self, hint: RetryHint) -> Self {
        let never = self.code.refusal().is_some_and(|code| refusal(code).retry == RetryKind::Never);
        self.retry_after_millis = match hint {
            RetryHint::After(wait) if !never => Some(wait.get()),
            _ => None,
        };
        self
    }

    /// With the counts per filter.
    #[must_use]
    pub fn with_counts(mut self, counts: FilterCounts) -> Self {
        self.counts = Some(counts);
        self
    }

    /// The value of the `Retry-After` header, where the answer carries one: always for codes that
    /// promise it, for the others where a time is known.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        let kind = self.code.refusal().map_or(RetryKind::Maybe, |code| refusal(code).retry);
        match (kind, self.retry_after_millis) {
            (RetryKind::Never, _) | (RetryKind::Maybe, None) => None,
            (RetryKind::After | RetryKind::Maybe, Some(wait)) => {
                Some(retry_after_seconds(Millis(wait)))
            }
            (RetryKind::After, None) => Some(retry_after_seconds(Millis::ZERO)),
        }
    }
}

impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Self {
        let mut problem = Self::new(RefusalCode::InvalidRequest, error.to_string());
        problem.field = Some(error.field);
        problem.given = Some(error.given);
        problem.bound = Some(error.bound);
        problem
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up_and_never_zero() {
        for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (90_000, 90)] {
            assert_eq!(retry_after_seconds(Millis(millis)), seconds);
        }
        let problem = Problem::new(RefusalCode::NoCapacity, "full");
        assert_eq!(problem.retry_after_seconds(), Some(1));
        let problem = problem.with_retry(RetryHint::After(Millis(2500)));
        assert_eq!(problem.retry_after_seconds(), Some(3));
    }

    #[test]
    fn codes_that_are_final_carry_no_hint() {
        let problem = Problem::new(RefusalCode::QuotaExceeded, "full")
            .with_retry(RetryHint::After(Millis(2500)));
        assert_eq!(problem.retry_after_millis, None);
        assert_eq!(problem.retry_after_seconds(), None);
        let may = Problem::new(RefusalCode::StartFailed, "no");
        assert_eq!(may.retry_after_seconds(), None);
        let may = may.with_retry(RetryHint::After(Millis(10)));
        assert_eq!(may.retry_after_seconds(), Some(1));
    }

    #[test]
    fn absent_members_are_left_out() {
        let problem = Problem::new(RefusalCode::NotFound, "no sandbox of this id");
        assert_eq!(
            serde_json::to_value(&problem).unwrap(),
            serde_json::json!({
                "type": "urn:plimsoll:problem:not_found",
                "title": "There is no such object",
                "status": 404,
                "detail": "no sandbox of this id",
                "code": "not_found",
            })
        );
    }

    #[test]
    fn bad_input_names_the_field_and_its_bound() {
        let error = FieldError::new("memory_mib", 0, "an integer from 1 to 16777216");
        let problem = Problem::from(error);
        assert_eq!(problem.status, 400);
        assert_eq!(problem.field.as_deref(), Some("memory_mib"));
        assert_eq!(problem.bound.as_deref(), Some("an integer from 1 to 16777216"));
        assert!(problem.detail.contains("memory_mib") && problem.detail.contains("16777216"));
    }

    #[test]
    fn unknown_codes_survive_the_journey() {
        let text = r#"{"code": "brand_new", "status": 503, "another": 1}"#;
        let problem: Problem = serde_json::from_str(text).unwrap();
        assert_eq!(problem.code, ProblemCode::Other("brand_new".into()));
        assert!(serde_json::to_string(&problem).unwrap().contains("brand_new"));
    }
}
