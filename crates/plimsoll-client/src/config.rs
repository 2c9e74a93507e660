//! Settings of a client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_api::Secret;
use plimsoll_types::TenantId;

use crate::error::Error;
use crate::retry::RetryPolicy;

/// Called before each wait, so that a program can say what it waits for.
pub type WaitHook = Arc<dyn Fn(&Waiting<'_>) + Send + Sync>;

/// One wait between two attempts.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// How many attempts have been made.
    pub attempts: u32,
    /// How long this wait is.
    pub delay: Duration,
    /// How long the call has taken so far.
    pub elapsed: Duration,
    /// When patience ends, counted from the call's start.
    pub deadline: Duration,
    /// What the last attempt came to: what is waited for.
    pub cause: &'a Error,
}

/// Settings of a [`crate::Client`].
#[derive(Clone)]
pub struct ClientConfig {
    /// Base URLs of a cell's replicas, at least one; the next is tried where one cannot be reached
    /// or does not lead.
    pub urls: Vec<String>,
    /// The key; none for the open routes alone.
    pub key: Option<Secret>,
    /// For an operator's key: the tenant to act for.
    pub tenant: Option<TenantId>,
    /// Longest time to a connection. 5 s: a replica that takes longer is as good as gone.
    pub connect_timeout: Duration,
    /// Longest time to a whole answer, beyond what the call itself may wait. 30 s: an answer that
    /// waits for nothing takes milliseconds, and a checked commit less than a second.
    pub request_timeout: Duration,
    /// The only certificate authorities to trust, in PEM; the system's where absent.
    pub ca_pem: Option<Vec<u8>>,
    /// When to try again.
    pub retry: RetryPolicy,
    /// Called before each wait.
    pub on_wait: Option<WaitHook>,
    /// Largest answer in bytes. 64 MiB: the report of a host with 100 000 guests is half of that.
    pub response_bytes_max: usize,
}

impl ClientConfig {
    /// Settings for one cell with every default and no key.
    #[must_use]
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            urls: urls.into_iter().map(Into::into).collect(),
            key: None,
            tenant: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            ca_pem: None,
            retry: RetryPolicy::default(),
            on_wait: None,
            response_bytes_max: 64 << 20,
        }
    }

    /// With a key.
    #[must_use]
    pub fn with_key(mut self, key: Secret) -> Self {
        self.key = Some(key);
        self
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("urls", &self.urls)
            .field("tenant", &self.tenant)
            .field("connect_timeout", &self.connect_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}
