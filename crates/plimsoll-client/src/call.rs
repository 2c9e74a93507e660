//! One request, before it is sent.

use std::time::Duration;

use plimsoll_api::Pairs;
use reqwest::Method;
use serde::Serialize;

use crate::error::Error;
use crate::retry::{Repeat, random};

/// One request to any replica.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Pairs,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) repeat: Repeat,
    /// What the service itself may wait before it answers.
    pub(crate) service_wait: Duration,
    /// Whether an attempt under way is ended by the deadline: not where it does work of its own.
    pub(crate) ends_at_deadline: bool,
}

impl Call {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            query: Pairs::new(),
            body: None,
            idempotency_key: None,
            repeat: Repeat::Safely,
            service_wait: Duration::ZERO,
            ends_at_deadline: true,
        }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    pub(crate) fn post(path: impl Into<String>) -> Self {
        Self::new(Method::POST, path)
    }

    pub(crate) fn patch(path: impl Into<String>) -> Self {
        Self::new(Method::PATCH, path)
    }

    pub(crate) fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path)
    }

    pub(crate) fn query(mut self, query: Pairs) -> Self {
        self.query = query;
        self
    }

    pub(crate) fn body(mut self, body: &impl Serialize) -> Result<Self, Error> {
        let bytes = serde_json::to_vec(body)
            .map_err(|error| Error::Config { what: "body", detail: error.to_string() })?;
        self.body = Some(bytes);
        Ok(self)
    }

    pub(crate) const fn repeat(mut self, repeat: Repeat) -> Self {
        self.repeat = repeat;
        self
    }

    pub(crate) const fn service_wait(mut self, wait: Duration) -> Self {
        self.service_wait = wait;
        self
    }

    pub(crate) const fn outlives_deadline(mut self) -> Self {
        self.ends_at_deadline = false;
        self
    }

    /// Whether another replica may be asked after this error.
    pub(crate) fn may_go_elsewhere(&self, error: &Error) -> bool {
        self.repeat == Repeat::Safely || error.is_surely_undone()
    }

    /// With the caller's key, or one made now: once for the call, whatever its number of attempts.
    pub(crate) fn idempotent(mut self, key: Option<&str>) -> Result<Self, Error> {
        let key = match key {
            Some(key) => {
                plimsoll_api::check_idempotency_key(key).map_err(|error| Error::Config {
                    what: "idempotency key",
                    detail: error.to_string(),
                })?;
                key.to_owned()
            }
            None => format!("auto-{:016x}{:016x}", random()?, random()?),
        };
        self.idempotency_key = Some(key);
        Ok(self)
    }
}
