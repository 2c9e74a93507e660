//! Sending calls to replicas and reading their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use plimsoll_api::{IDEMPOTENCY_KEY_HEADER, Problem, TENANT_HEADER};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Response, Url};
use serde::de::DeserializeOwned;

use crate::call::Call;
use crate::config::ClientConfig;
use crate::error::{Error, Refused};
use crate::retry::{RetryPolicy, parse_http_date, parse_retry_after, persist};

/// Least time that an attempt is given near the deadline: enough for an answer that waits for
/// nothing.
const ATTEMPT_MIN: Duration = Duration::from_secs(1);

/// A client of one cell. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    retry: RetryPolicy,
}

struct Shared {
    http: reqwest::Client,
    urls: Vec<Url>,
    headers: HeaderMap,
    /// The replica that answered last.
    preferred: AtomicUsize,
    config: ClientConfig,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) url: String,
    pub(crate) status: u16,
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    /// The body as a value.
    pub(crate) fn read<T: DeserializeOwned>(self) -> Result<T, Error> {
        serde_json::from_slice(&self.bytes).map_err(|error| Error::Malformed {
            url: self.url,
            status: self.status,
            detail: error.to_string(),
        })
    }
}

impl Client {
    /// A client with the given settings.
    ///
    /// # Errors
    /// [`Error::Config`] where a URL, the key or the certificates are malformed.
    pub fn new(config: ClientConfig) -> Result<Self, Error> {
        let urls: Vec<Url> =
            config.urls.iter().map(|url| parse_url(url)).collect::<Result<_, _>>()?;
        if urls.is_empty() {
            return Err(Error::Config { what: "urls", detail: "at least one is needed".into() });
        }
        let mut headers = HeaderMap::new();
        if let Some(key) = &config.key {
            headers.insert(AUTHORIZATION, bearer(key.expose())?);
        }
        if let Some(tenant) = &config.tenant {
            let value = HeaderValue::from_str(tenant.as_str())
                .map_err(|error| Error::Config { what: "tenant", detail: error.to_string() })?;
            headers.insert(TENANT_HEADER, value);
        }
        let secure = urls.iter().any(|url| url.scheme() == "https");
        let http = http_client(config.ca_pem.as_deref(), secure)?
            .connect_timeout(config.connect_timeout)
            .build()
            .map_err(|error| Error::Config { what: "TLS", detail: error.to_string() })?;
        let retry = config.retry;
        let preferred = AtomicUsize::new(0);
        let shared = Shared { http, urls, headers, preferred, config };
        Ok(Self { shared: Arc::new(shared), retry })
    }

    /// The same client with other patience.
    #[must_use]
    pub fn with_retry(&self, retry: RetryPolicy) -> Self {
        Self { shared: Arc::clone(&self.shared), retry }
    }

    /// Makes a call and reads its answer.
    pub(crate) async fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        self.send(&call).await?.read()
    }

    /// Makes a call whose answer says nothing.
    pub(crate) async fn call_for_nothing(&self, call: Call) -> Result<(), Error> {
        self.send(&call).await.map(drop)
    }

    /// Makes a call, with all the patience that it allows.
    pub(crate) async fn send(&self, call: &Call) -> Result<Answer, Error> {
        let hook = self.shared.config.on_wait.as_ref();
        persist(&self.retry, call.repeat, hook, |left| self.round(call, left)).await
    }

    /// One attempt: each replica in turn, as long as the fault is the replica's.
    async fn round(&self, call: &Call, left: Duration) -> Result<Answer, Error> {
        let shared = &*self.shared;
        let first = shared.preferred.load(Ordering::Relaxed);
        let mut tried = 0;
        loop {
            let at = (first + tried) % shared.urls.len();
            let outcome = self.once(at, call, left).await;
            tried += 1;
            match outcome {
                Err(error)
                    if tried < shared.urls.len()
                        && error.is_of_replica()
                        && call.may_go_elsewhere(&error) =>
                {
                    tracing::debug!(%error, "trying the next replica");
                }
                outcome => {
                    if outcome.is_ok() {
                        shared.preferred.store(at, Ordering::Relaxed);
                    }
                    return outcome;
                }
            }
        }
    }

    /// One request to one replica.
    async fn once(&self, at: usize, call: &Call, left: Duration) -> Result<Answer, Error> {
        let shared = &*self.shared;
        let base = &shared.urls[at];
        let url = target(base, call);
        let longest = shared.config.request_timeout.saturating_add(call.service_wait);
        let ends = call.ends_at_deadline && !self.retry.deadline.is_zero();
        let timeout = if ends { longest.min(left.max(ATTEMPT_MIN)) } else { longest };
        let mut request = shared
            .http
            .request(call.method.clone(), url)
            .headers(shared.headers.clone())
            .timeout(timeout);
        if let Some(key) = &call.idempotency_key {
            request = request.header(IDEMPOTENCY_KEY_HEADER, key);
        }
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        let failed = |error| on_the_way(base, timeout, error);
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        let headers = response.headers().clone();
        let bytes = read_bounded(response, shared.config.response_bytes_max)
            .await
            .map_err(|fault| fault.into_error(base, timeout))?;
        let answer = Answer { url: base.to_string(), status: status.as_u16(), bytes };
        if status.is_success() {
            return Ok(answer);
        }
        Err(Error::Refused(Box::new(refused(&answer, &headers))))
    }
}

/// The address of a call at a replica, whose own path is kept as a prefix.
fn target(base: &Url, call: &Call) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}{}", base.path().trim_end_matches('/'), call.path));
    if !call.query.is_empty() {
        url.query_pairs_mut().extend_pairs(&call.query);
    }
    url
}

/// Reads a base URL.
pub(crate) fn parse_url(text: &str) -> Result<Url, Error> {
    let config = |detail: String| Error::Config { what: "url", detail };
    let url = Url::parse(text).map_err(|error| config(format!("{text:?}: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(config(format!("{text:?}: http:// or https:// and a host are needed")));
    }
    Ok(url)
}

/// The header that proves who asks; never shown by `Debug`.
pub(crate) fn bearer(key: &str) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| Error::Config {
        what: "key",
        detail: "it holds characters that no header takes".into(),
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// A builder with what all clients share: ring for TLS, no redirects (a redirect would carry the
/// key elsewhere and turn a POST into a GET).
pub(crate) fn http_client(
    ca_pem: Option<&[u8]>,
    secure: bool,
) -> Result<reqwest::ClientBuilder, Error> {
    // An error means that the process has chosen a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("plimsoll-client/", env!("CARGO_PKG_VERSION")));
    let config =
        |error: reqwest::Error| Error::Config { what: "ca_pem", detail: error.to_string() };
    Ok(match ca_pem {
        Some(pem) => {
            let certificates = reqwest::Certificate::from_pem_bundle(pem).map_err(config)?;
            if certificates.is_empty() {
                let detail = "no certificate in it".into();
                return Err(Error::Config { what: "ca_pem", detail });
            }
            builder.tls_certs_only(certificates)
        }
        None if secure => builder,
        // Without TLS there is nothing to trust, and a machine without certificates will do.
        None => builder.tls_certs_only([]),
    })
}

/// Why a body could not be read.
pub(crate) enum BodyFault {
    TooLarge(usize),
    OnTheWay(reqwest::Error),
}

impl BodyFault {
    fn into_error(self, base: &Url, timeout: Duration) -> Error {
        match self {
            Self::TooLarge(bytes_max) => Error::TooLarge { url: base.to_string(), bytes_max },
            Self::OnTheWay(error) => on_the_way(base, timeout, error),
        }
    }
}

/// Reads a body up to a bound, and stops reading where it is passed.
pub(crate) async fn read_bounded(
    mut response: Response,
    bytes_max: usize,
) -> Result<Vec<u8>, BodyFault> {
    let announced = response.content_length().unwrap_or(0);
    if announced > u64::try_from(bytes_max).unwrap_or(u64::MAX) {
        return Err(BodyFault::TooLarge(bytes_max));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(BodyFault::OnTheWay)? {
        if bytes.len().saturating_add(chunk.len()) > bytes_max {
            return Err(BodyFault::TooLarge(bytes_max));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn on_the_way(base: &Url, timeout: Duration, error: reqwest::Error) -> Error {
    let url = base.to_string();
    // The error would repeat the address, with the query.
    let source = error.without_url();
    if source.is_connect() {
        Error::Connect { url, source }
    } else if source.is_timeout() {
        Error::Timeout { url, after: timeout }
    } else if source.is_builder() {
        Error::Config { what: "request", detail: source.to_string() }
    } else {
        Error::Broken { url, source }
    }
}

/// Reads a refusal: the problem where there is one, and the larger of both waits.
pub(crate) fn refused(answer: &Answer, headers: &HeaderMap) -> Refused {
    let problem: Option<Problem> = serde_json::from_slice(&answer.bytes).ok();
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let now = text(DATE).and_then(parse_http_date).unwrap_or_else(jiff::Timestamp::now);
    let header = text(RETRY_AFTER).and_then(|value| parse_retry_after(value, now));
    let body = problem.as_ref().and_then(|problem| problem.retry_after_millis);
    let retry_after = header.max(body.map(Duration::from_millis));
    Refused { status: answer.status, problem, retry_after }
}
