//! How many requests tenants make: nothing has a price on it, but a million from an account that is
//! an hour old says something about abuse.
//!
//! Each key counts for itself, with one addition for a request; the sums go to the engine now and
//! then. Counts of an interval in which the engine takes nothing in are lost: they are a sign, and
//! no account of anything.

use std::sync::Arc;
use std::time::Duration;

use crate::core::Core;
use crate::shell::Shell;

/// Tenants in one message: some 100 us of work for the engine.
const TENANTS_MAX: usize = 1_000;

/// Hands the counts over for as long as the cell runs.
pub(crate) async fn run(core: Arc<Core>, shell: Arc<Shell>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let counts = shell.keys.take_requests();
        for some in counts.chunks(TENANTS_MAX) {
            match core.requests(some.to_vec()) {
                Ok(()) => {
                    let sum = some.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
                    shell.metrics.tenant_requests.inc_by(sum);
                }
                Err(error) => tracing::debug!(%error, "counts of requests are lost"),
            }
        }
    }
}
