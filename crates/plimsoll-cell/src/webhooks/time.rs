//! The time that retries go by.

use std::time::Duration;

use plimsoll_types::Timestamp;

use crate::clock::wall;

/// Where the time comes from.
#[derive(Clone, Debug, Default)]
pub(crate) enum Time {
    /// The machine's clock.
    #[default]
    Wall,
    /// A clock that the test moves.
    #[cfg(test)]
    Manual(tokio::sync::watch::Sender<Timestamp>),
}

impl Time {
    /// The time now.
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::Wall => wall(),
            #[cfg(test)]
            Self::Manual(clock) => *clock.borrow(),
        }
    }

    /// Waits until then.
    pub(crate) async fn until(&self, due: Timestamp) {
        match self {
            Self::Wall => {
                let left = due.since(wall());
                tokio::time::sleep(Duration::from_millis(left.get())).await;
            }
            #[cfg(test)]
            Self::Manual(clock) => {
                // The sender is held here, so it does not close.
                let _ = clock.subscribe().wait_for(|now| *now >= due).await;
            }
        }
    }
}
