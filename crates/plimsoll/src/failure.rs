//! What a command says when it does not do what it was asked, and how it exits.

use std::io::Write as _;
use std::process::ExitCode;

use plimsoll_api::{FieldError, Problem, ProblemCode};
use plimsoll_client::Error;
use plimsoll_types::RefusalCode;

use crate::show;

/// How a command exits when it was not done. The numbers are part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// 1: refused for good.
    Refused,
    /// 2: the command line or the settings make no sense.
    Usage,
    /// 75, `EX_TEMPFAIL` of sysexits: refused for now, the same call may succeed later.
    NotNow,
}

impl Exit {
    const fn code(self) -> u8 {
        match self {
            Self::Refused => 1,
            Self::Usage => 2,
            Self::NotNow => 75,
        }
    }
}

/// Why a command was not done: what happened, what to do about it, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    what: String,
    hint: Option<String>,
    /// The service's own answer, for `--json`.
    problem: Option<Box<Problem>>,
}

impl Failure {
    /// Refused for good.
    pub(crate) fn refused(what: impl Into<String>) -> Self {
        Self { exit: Exit::Refused, what: what.into(), hint: None, problem: None }
    }

    /// Nothing that could be asked for.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, ..Self::refused(what) }
    }

    /// Refused for now.
    pub(crate) fn not_now(what: impl Into<String>) -> Self {
        Self { exit: Exit::NotNow, ..Self::refused(what) }
    }

    /// With what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Writes it to the error stream, and the service's answer to the output where JSON was asked
    /// for; gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        if show::wants_json()
            && let Some(problem) = &self.problem
        {
            // The exit code tells the rest, if nobody reads.
            let _ = show::json(problem);
        }
        let mut text = format!("error: {}\n", show::clean(&self.what));
        if let Some(hint) = &self.hint {
            text.push_str(&format!("hint: {}\n", show::clean(hint)));
        }
        let _ = std::io::stderr().write_all(text.as_bytes());
        ExitCode::from(self.exit.code())
    }

    #[cfg(test)]
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> String {
        format!("{} / {}", self.what, self.hint.as_deref().unwrap_or_default())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match &error {
            Error::Config { .. } => Exit::Usage,
            error if error.is_transient() => Exit::NotNow,
            _ => Exit::Refused,
        };
        let mut hint = hint_for(&error);
        let mut what = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            what.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        let last = match &error {
            Error::CapacityUnavailable { last, .. } => last,
            error => error,
        };
        if matches!(last, Error::Connect { .. }) && what.contains("certificate") {
            hint = Some("--ca-file names the certificate, or the authority, to trust".to_owned());
        }
        let problem = error.problem().cloned().map(Box::new);
        Self { exit, what, hint, problem }
    }
}

impl From<FieldError> for Failure {
    fn from(error: FieldError) -> Self {
        Self::usage(error.to_string())
    }
}

fn hint_for(error: &Error) -> Option<String> {
    if let Some(problem) = error.problem() {
        let mut hint = hint_for_problem(problem);
        if let Some(id) = problem.decision_id {
            let see = format!("`plimsoll decisions {id}` shows the arithmetic");
            hint = Some(hint.map_or_else(|| see.clone(), |hint| format!("{hint}; {see}")));
        }
        return hint;
    }
    match error {
        Error::CapacityUnavailable { last, .. } => hint_for(last),
        Error::Connect { .. } => Some(
            "is the cell up? `plimsoll up` starts one here; --url or PLIMSOLL_URL names another"
                .to_owned(),
        ),
        Error::Broken { .. } | Error::Timeout { .. } => {
            Some("whether it was carried out is not known; look before you repeat it".to_owned())
        }
        _ => None,
    }
}

/// Where to look for what there is, by what the service says is not there.
fn hint_for_missing(detail: &str) -> Option<String> {
    let lists = [
        ("sandbox", "`plimsoll ls --all` shows those that have ended, too"),
        ("host", "`plimsoll hosts` lists those that exist"),
        ("tenant", "`plimsoll tenants` lists those that exist"),
        ("plan", "`plimsoll plans` lists those that exist"),
        ("pool", "`plimsoll pools` lists those that exist"),
        ("template", "`plimsoll templates` lists those that exist"),
    ];
    let mut words = detail.split(|letter: char| !letter.is_ascii_alphabetic());
    words
        .find_map(|word| lists.iter().find(|(what, _)| *what == word))
        .map(|(_, hint)| (*hint).to_owned())
}

fn hint_for_problem(problem: &Problem) -> Option<String> {
    let ProblemCode::Refusal(code) = &problem.code else { return None };
    let hint = match code {
        RefusalCode::NoCapacity | RefusalCode::WaitingTimeout => {
            "room comes back by itself: `--on-full queue` keeps a place, a longer --deadline waits"
        }
        RefusalCode::NoHealthyHosts => {
            "no host reports: `plimsoll hosts` shows them, `plimsoll agent` adds one"
        }
        RefusalCode::HostStartsSaturated => {
            "hosts have room and are busy starting others: try again in a moment"
        }
        RefusalCode::HostPressure => {
            "hosts with room are short of memory: it passes, or add a host"
        }
        RefusalCode::Degraded => "the policy is old and sheddable work waits: `plimsoll policy`",
        RefusalCode::RateLimited => "slow down: `plimsoll quota` shows the rate that is left",
        RefusalCode::QuotaExceeded => {
            "shut something down, or have the plan raised: `plimsoll quota`, `plimsoll ls`"
        }
        RefusalCode::BudgetExhausted => {
            "the budget comes back with the next period, or with a larger plan: `plimsoll quota`"
        }
        RefusalCode::TenantSuspended => "only an operator can lift this",
        RefusalCode::NeverFits => "ask for less: no host and no limit could ever take this",
        RefusalCode::UnknownTemplate => "`plimsoll templates` lists those that exist",
        RefusalCode::UnknownPool => "`plimsoll pools` lists those that exist",
        RefusalCode::NotFound => return hint_for_missing(&problem.detail),
        RefusalCode::Unauthenticated => "give a key: --key-file FILE or PLIMSOLL_KEY",
        RefusalCode::Forbidden => "this needs a key of another role: --key-file FILE",
        RefusalCode::StoreUnavailable => {
            "the outcome is not known: repeat with the same --idempotency-key"
        }
        RefusalCode::StartFailed => "`plimsoll hosts` shows which hosts fail their starts",
        _ => return None,
    };
    Some(hint.to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use plimsoll_client::Refused;

    use super::*;

    fn refused(code: RefusalCode) -> Error {
        let problem = Problem::new(code, "what happened");
        let (status, retry_after) = (problem.status, None);
        Error::Refused(Box::new(Refused { status, problem: Some(problem), retry_after }))
    }

    #[test]
    fn exit_codes_follow_the_table_of_refusals() {
        for code in RefusalCode::ALL {
            let row = plimsoll_api::refusal(*code);
            let exit = Failure::from(refused(*code)).exit();
            let now = matches!(row.status, 429 | 502 | 503);
            assert_eq!(exit, if now { Exit::NotNow } else { Exit::Refused }, "{code}");
        }
        assert_eq!([Exit::Refused, Exit::Usage, Exit::NotNow].map(Exit::code), [1, 2, 75]);
    }

    #[test]
    fn what_is_missing_is_looked_for_where_it_is_listed() {
        for (detail, list) in [
            ("no sandbox sbx_0", Some("`plimsoll ls --all`")),
            ("there is no such sandbox", Some("`plimsoll ls --all`")),
            ("no host nope", Some("`plimsoll hosts`")),
            ("no tenant nope", Some("`plimsoll tenants`")),
            ("no such key", None),
        ] {
            let hint = hint_for_missing(detail);
            assert_eq!(hint.is_some(), list.is_some(), "{detail}");
            assert!(hint.unwrap_or_default().starts_with(list.unwrap_or_default()), "{detail}");
        }
    }

    #[test]
    fn patience_that_ended_is_told_with_its_last_cause() {
        let error = Error::CapacityUnavailable {
            waited: Duration::from_secs(90),
            attempts: 12,
            last: Box::new(refused(RefusalCode::NoCapacity)),
        };
        let failure = Failure::from(error);
        assert_eq!(failure.exit(), Exit::NotNow);
        let text = failure.text();
        assert!(text.contains("90.0 s") && text.contains("no_capacity"), "{text}");
        assert!(text.contains("--on-full queue"), "{text}");
    }
}
