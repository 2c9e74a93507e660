//! Commands that serve: a cell, an agent, or both on this machine.

pub(crate) mod agent;
pub(crate) mod cell;
pub(crate) mod quota;
pub(crate) mod templates;
pub(crate) mod up;

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Files to serve TLS with.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Tls {
    /// Certificate and its chain, in PEM [default: none, plain HTTP]
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// Waits for the first of SIGINT and SIGTERM; a second one ends the process at once.
///
/// # Errors
/// When the system does not let signals be caught.
pub(crate) fn asked_to_stop() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    let failed = |error| Failure::refused(format!("signals cannot be caught: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("shutting down; a second signal ends at once");
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            std::process::exit(130);
        });
    })
}

/// An error and what is behind it, in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// A path as an absolute one: what is handed to guests and children must not depend on where this
/// process happens to stand.
///
/// # Errors
/// When the system does not tell where this process stands.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|error| Failure::usage(format!("{} is no path: {error}", path.display())))
}
