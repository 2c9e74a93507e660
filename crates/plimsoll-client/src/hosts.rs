//! A host's side of the cell: registration and heartbeats.

use plimsoll_api::{Heartbeat, RegisterAnswer, RegisterHost};
use plimsoll_types::{HeartbeatAnswer, HostId};

use crate::call::Call;
use crate::error::Error;
use crate::retry::Repeat;
use crate::transport::Client;

impl Client {
    /// Registers an agent's start. Made once over all replicas; the agent's own loop repeats it.
    ///
    /// # Errors
    /// [`Error::Refused`] or what went wrong on the way.
    pub async fn register_host(
        &self,
        host: &HostId,
        body: &RegisterHost,
    ) -> Result<RegisterAnswer, Error> {
        let call =
            Call::post(format!("/v1/hosts/{host}/register")).body(body)?.repeat(Repeat::Never);
        self.call(call).await
    }

    /// Sends one heartbeat. Made once over all replicas: a repeated one would be older than the
    /// next.
    ///
    /// # Errors
    /// [`Error::Refused`] or what went wrong on the way.
    pub async fn heartbeat(
        &self,
        host: &HostId,
        body: &Heartbeat,
    ) -> Result<HeartbeatAnswer, Error> {
        let call =
            Call::post(format!("/v1/hosts/{host}/heartbeat")).body(body)?.repeat(Repeat::Never);
        self.call(call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_can_be_made_from_a_task() {
        fn may_move<T: Send>(_: impl FnOnce(Client, HostId, RegisterHost) -> T) {}
        may_move(|client, host, body| async move { client.register_host(&host, &body).await });
    }
}
