//! The one table: code -> status, retry, title, who acts.

use plimsoll_types::RefusalCode;

/// When trying the same request again makes sense, by kind of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryKind {
    /// After the time that the answer states; the answer always states one.
    After,
    /// Never: the request must change, or somebody must act first.
    Never,
    /// It may succeed; nothing is known about when.
    Maybe,
}

/// Who can make the refused request succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acts {
    /// The caller, by waiting.
    CallerWaits,
    /// The caller, by asking less often.
    CallerSlowsDown,
    /// The caller, by sending something else.
    Caller,
    /// The tenant, by freeing something, paying or waiting for the next period.
    Tenant,
    /// The operator, who is paged.
    Operator,
    /// The operator, if it goes on.
    OperatorIfRepeated,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// Whether and when to retry.
    pub retry: RetryKind,
    /// What it means, for people.
    pub title: &'static str,
    /// Who acts.
    pub acts: Acts,
}

/// The row of a code. Source: DESIGN 4.9.
///
/// A `match` without a default arm, so that a new code does not compile until its row is written.
#[must_use]
pub const fn refusal(code: RefusalCode) -> Refusal {
    use Acts::{Caller, CallerSlowsDown, CallerWaits, Operator, OperatorIfRepeated, Tenant};
    use RefusalCode as Code;
    use RetryKind::{After, Maybe, Never};
    const fn row(status: u16, retry: RetryKind, acts: Acts, title: &'static str) -> Refusal {
        Refusal { status, retry, title, acts }
    }
    match code {
        Code::NoCapacity => row(503, After, CallerWaits, "There is no room right now"),
        Code::NoHealthyHosts => row(503, After, Operator, "No host is known to be healthy"),
        Code::HostStartsSaturated => {
            row(503, After, CallerWaits, "Hosts with room are busy with other starts")
        }
        Code::HostPressure => row(503, After, CallerWaits, "Hosts are under memory pressure"),
        Code::Degraded => row(503, After, CallerWaits, "Sheddable work waits for a fresh policy"),
        Code::WaitingTimeout => {
            row(503, After, CallerWaits, "Still waiting for room; the place in the queue is kept")
        }
        Code::Overloaded => row(503, After, CallerWaits, "The cell has too much to do"),
        Code::NotLeader => row(503, After, CallerWaits, "Another replica decides"),
        Code::StoreUnavailable => {
            row(503, After, CallerWaits, "The outcome is unknown; repeat with the same key")
        }
        Code::RateLimited => row(429, After, CallerSlowsDown, "Too many requests of this kind"),
        Code::QuotaExceeded => row(403, Never, Tenant, "A concurrency limit is reached"),
        Code::BudgetExhausted => row(403, Never, Tenant, "The period's budget is used up"),
        Code::TenantSuspended => row(403, Never, Tenant, "The tenant is suspended"),
        Code::NeverFits => row(422, Never, Caller, "No host or limit could ever take this"),
        Code::UnknownTemplate => row(422, Never, Caller, "There is no such template"),
        Code::UnknownPool => row(422, Never, Caller, "There is no such pool"),
        Code::InvalidRequest => row(400, Never, Caller, "The request is malformed"),
        Code::PayloadTooLarge => row(413, Never, Caller, "The body is too large"),
        Code::Unauthenticated => row(401, Never, Caller, "A valid key is needed"),
        Code::Forbidden => row(403, Never, Caller, "The key's role does not allow this"),
        Code::NotFound => row(404, Never, Caller, "There is no such object"),
        Code::Conflict => row(409, Never, Caller, "The request conflicts with what is there"),
        Code::ReservationExpired => row(409, Never, Caller, "The reservation has lapsed"),
        Code::StartFailed => row(502, Maybe, OperatorIfRepeated, "The guest could not be started"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_the_row_of_the_design() {
        use Acts::*;
        use RetryKind::*;
        let expected = [
            ("no_capacity", 503, After, CallerWaits),
            ("no_healthy_hosts", 503, After, Operator),
            ("host_starts_saturated", 503, After, CallerWaits),
            ("host_pressure", 503, After, CallerWaits),
            ("degraded", 503, After, CallerWaits),
            ("waiting_timeout", 503, After, CallerWaits),
            ("overloaded", 503, After, CallerWaits),
            ("not_leader", 503, After, CallerWaits),
            ("store_unavailable", 503, After, CallerWaits),
            ("rate_limited", 429, After, CallerSlowsDown),
            ("quota_exceeded", 403, Never, Tenant),
            ("budget_exhausted", 403, Never, Tenant),
            ("tenant_suspended", 403, Never, Tenant),
            ("never_fits", 422, Never, Caller),
            ("unknown_template", 422, Never, Caller),
            ("unknown_pool", 422, Never, Caller),
            ("invalid_request", 400, Never, Caller),
            ("payload_too_large", 413, Never, Caller),
            ("unauthenticated", 401, Never, Caller),
            ("forbidden", 403, Never, Caller),
            ("not_found", 404, Never, Caller),
            ("conflict", 409, Never, Caller),
            ("reservation_expired", 409, Never, Caller),
            ("start_failed", 502, Maybe, OperatorIfRepeated),
        ];
        let held: Vec<_> = RefusalCode::ALL
            .iter()
            .map(|code| {
                let row = refusal(*code);
                (code.as_str(), row.status, row.retry, row.acts)
            })
            .collect();
        assert_eq!(held, expected);
    }

    #[test]
    fn titles_tell_codes_apart_and_capacity_is_never_final() {
        let mut titles: Vec<_> = RefusalCode::ALL.iter().map(|code| refusal(*code).title).collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), RefusalCode::ALL.len());
        for code in RefusalCode::ALL.iter().filter(|code| code.is_capacity()) {
            let row = refusal(*code);
            assert_eq!((row.status, row.retry), (503, RetryKind::After), "{code}");
        }
    }
}
