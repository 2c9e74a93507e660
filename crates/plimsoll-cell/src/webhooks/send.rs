//! One attempt to deliver one event.

use std::error::Error as _;
use std::time::{Duration, Instant};

use plimsoll_engine::rows::{EndpointRow, EventRow};
use plimsoll_types::{Millis, Timestamp};
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, redirect};

use super::address::{PublicOnly, check_url};
use super::sign::signatures;
use super::time::Time;
use crate::map;

/// Longest time for one attempt, from the name's look-up to the last byte that is read: receivers
/// are to take an event and work on it later.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An idle connection is kept for so long: events come in bursts.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of an answer that are read, so that its connection can be used again. What it says is
/// kept nowhere: the log must not become a window into whatever answers.
const ANSWER_BYTES_MAX: usize = 4 << 10;
/// Longest explanation in the log.
const DETAIL_LENGTH_MAX: usize = 200;

/// What a receiver made of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It answered 2xx.
    Taken,
    /// It answered 410: it wants no more.
    Gone,
    /// Anything else.
    Failed {
        /// Why, for people.
        detail: String,
        /// How long it asked to be left alone.
        retry_after: Option<Millis>,
    },
}

/// An attempt that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// When it began.
    pub(crate) at: Timestamp,
    /// How long it took.
    pub(crate) took: Millis,
    /// The status, where there was an answer.
    pub(crate) status: Option<u16>,
    /// How it came out.
    pub(crate) verdict: Verdict,
}

/// Sends events.
#[derive(Debug)]
pub(super) struct Sender {
    client: Client,
    private: bool,
    pub(super) time: Time,
}

impl Sender {
    /// A sender; `private` lets it reach addresses inside.
    pub(super) fn new(private: bool, time: Time) -> Result<Self, reqwest::Error> {
        let client = Client::builder()
            .user_agent("plimsoll-webhooks")
            .timeout(ATTEMPT_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(1)
            // A redirect could lead inside, and an event is for the receiver that was named.
            .redirect(redirect::Policy::none())
            // A proxy would resolve names by itself.
            .no_proxy()
            .dns_resolver(PublicOnly { private })
            .build()?;
        Ok(Self { client, private, time })
    }

    /// Sends an event once.
    pub(super) async fn attempt(&self, row: &EndpointRow, event: &EventRow) -> Attempt {
        let (at, begun) = (self.time.now(), Instant::now());
        let (status, verdict) = match self.post(row, event, at).await {
            Ok(response) => judge(response).await,
            Err(detail) => (None, failed(detail)),
        };
        let took = Millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        Attempt { at, took, status, verdict }
    }

    async fn post(
        &self,
        row: &EndpointRow,
        event: &EventRow,
        at: Timestamp,
    ) -> Result<Response, String> {
        // Again each time: what the operator allows may have changed since the endpoint was made.
        let url = check_url(&row.url, self.private).map_err(|error| error.to_string())?;
        let body = serde_json::to_vec(&map::event(event.clone()));
        let body = body.map_err(|error| format!("the event cannot be written: {error}"))?;
        let (id, seconds) = (event.id.to_string(), at.millis().div_euclid(1_000));
        let signature = signatures(&row.secrets, at, &id, seconds, &body);
        let request = self
            .client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", seconds)
            .header("webhook-signature", signature)
            .body(body);
        request.send().await.map_err(|error| describe(&error))
    }
}

fn failed(mut detail: String) -> Verdict {
    if let Some((end, _)) = detail.char_indices().nth(DETAIL_LENGTH_MAX) {
        detail.truncate(end);
    }
    Verdict::Failed { detail, retry_after: None }
}

/// What went wrong, without the URL.
fn describe(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", ATTEMPT_TIMEOUT.as_secs());
    }
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(std::error::Error::source) {
        cause = Some(deeper);
    }
    match cause {
        Some(cause) => format!("the receiver could not be reached: {cause}"),
        None => "the receiver could not be reached".to_owned(),
    }
}

async fn judge(mut response: Response) -> (Option<u16>, Verdict) {
    let status = response.status();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after =
        retry_after.and_then(|text| text.trim().parse().ok()).map(Millis::from_seconds);
    let mut read = 0;
    while read < ANSWER_BYTES_MAX
        && let Ok(Some(chunk)) = response.chunk().await
    {
        read += chunk.len();
    }
    let verdict = if status.is_success() {
        Verdict::Taken
    } else if status == StatusCode::GONE {
        Verdict::Gone
    } else if status.is_redirection() {
        failed(format!("the receiver answered {status}: redirects are not followed"))
    } else {
        Verdict::Failed { detail: format!("the receiver answered {status}"), retry_after }
    };
    (Some(status.as_u16()), verdict)
}
