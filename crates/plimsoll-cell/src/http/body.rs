//! Bodies and queries of requests.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Request};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use plimsoll_api::{self as api, FieldError, Pairs};
use plimsoll_types::RefusalCode;
use tokio::time::timeout;

use super::Reject;
use crate::app::App;

/// Bodies up to this size are not counted against the bound on all bodies: with the bound on
/// connections they come to 160 MiB at most.
const SMALL_BYTES: usize = 16 << 10;

/// Reads a whole body of at most `most` bytes. The content type is not asked for: there is but one
/// that makes sense, and tools that send a body without saying so are common.
///
/// # Errors
/// When it is larger, too slow, or broken off.
pub(crate) async fn raw_body(app: &App, request: Request, most: usize) -> Result<Bytes, Reject> {
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > most) {
        drain(request.into_body()).await;
        return Err(too_large(most));
    }
    let expected = length.unwrap_or(most);
    let _room = if expected > SMALL_BYTES {
        let units = expected.div_ceil(SMALL_BYTES) as u32;
        let room = Arc::clone(&app.bodies).try_acquire_many_owned(units);
        let refused = |_| Reject::new(RefusalCode::Overloaded, "too many large bodies at once");
        Some(room.map_err(refused)?)
    } else {
        None
    };
    let mut collected = Box::pin(collect(request.into_body(), most));
    // A body usually came with its head: then no timer is needed.
    if let Some(done) = (&mut collected).now_or_never() {
        return done;
    }
    let limit = app.config.limits.body_timeout;
    timeout(limit, collected).await.unwrap_or_else(|_| {
        let bound = format!("a body that arrives within {} s", limit.as_secs());
        Err(FieldError::new("body", "one that came too slowly", bound).into())
    })
}

async fn collect(mut body: Body, most: usize) -> Result<Bytes, Reject> {
    let broken = |_| Reject::from(FieldError::new("body", "one that broke off", "a whole body"));
    let mut first: Option<Bytes> = None;
    let mut more: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(broken)?.into_data() else { continue };
        let held = first.as_ref().map_or(more.len(), Bytes::len);
        if held + piece.len() > most {
            drain(body).await;
            return Err(too_large(most));
        }
        match first.take() {
            None if more.is_empty() => first = Some(piece),
            None => more.extend_from_slice(&piece),
            Some(before) => {
                more.extend_from_slice(&before);
                more.extend_from_slice(&piece);
            }
        }
    }
    Ok(first.unwrap_or_else(|| Bytes::from(more)))
}

/// Of a body that is too large so much more is read and dropped: closing the connection while its
/// caller still sends would reset it, and the caller would see that and not the refusal. 8 MiB,
/// eight times the usual bound; who sends more learns by the reset.
const DRAINED_BYTES_MAX: usize = 8 << 20;
/// The longest time for that.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

async fn drain(mut body: Body) {
    let read = async {
        let mut dropped = 0;
        while let Some(Ok(frame)) = body.frame().await {
            dropped += frame.data_ref().map_or(0, Bytes::len);
            if dropped > DRAINED_BYTES_MAX {
                return;
            }
        }
    };
    // Whether it came to its end makes no difference to the answer.
    let _ = timeout(DRAIN_TIMEOUT, read).await;
}

fn too_large(most: usize) -> Reject {
    let mut problem = api::Problem::new(
        RefusalCode::PayloadTooLarge,
        format!("the body is larger than {most} bytes"),
    );
    problem.field = Some("body".to_owned());
    problem.bound = Some(format!("at most {most} bytes"));
    problem.into()
}

/// Reads a whole body of at most the usual bound.
///
/// # Errors
/// As [`raw_body`].
pub(crate) async fn whole_body(app: &App, request: Request) -> Result<Bytes, Reject> {
    raw_body(app, request, app.config.limits.body_bytes_max).await
}

/// Reads and checks a body.
///
/// # Errors
/// Names the field that is malformed or out of its bound.
pub(crate) async fn read<T: api::Body>(app: &App, request: Request) -> Result<T, Reject> {
    let bytes = whole_body(app, request).await?;
    Ok(api::parse(&bytes)?)
}

/// As [`read`], for a body that may be left out.
///
/// # Errors
/// As [`read`].
pub(crate) async fn read_optional<T: api::Body + Default>(
    app: &App,
    request: Request,
) -> Result<T, Reject> {
    let bytes = whole_body(app, request).await?;
    Ok(api::parse_or_default(&bytes)?)
}

/// The query as pairs, decoded.
pub(crate) struct Query(pub(crate) Pairs);

impl FromRequestParts<Arc<App>> for Query {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Reject> {
        let pairs = axum::extract::Query::<Pairs>::try_from_uri(&parts.uri);
        match pairs {
            Ok(axum::extract::Query(pairs)) => Ok(Self(pairs)),
            Err(_) => {
                let bound = "name=value pairs, percent-encoded UTF-8";
                Err(FieldError::new("query", "what is no query", bound).into())
            }
        }
    }
}
