//! Reservations, and what a request would come to.

use std::time::Duration;

use plimsoll_api::{
    CommitReservation, DryRun, ExplainRequest, Explanation, RenewReservation, Reservation,
    ReservationBatch, Reservations, ReserveMode, ReserveRequest,
};
use plimsoll_types::ReservationId;

use crate::call::Call;
use crate::error::Error;
use crate::transport::Client;

fn one(id: ReservationId) -> String {
    format!("/v1/reservations/{id}")
}

impl Client {
    /// Reserves. The body's own key makes repeats safe.
    ///
    /// # Errors
    /// [`Error::Refused`] for good, [`Error::CapacityUnavailable`] where patience ended.
    /// [`Error::Config`] for mode `dry_run`, which [`Self::reserve_dry_run`] is for.
    pub async fn reserve(&self, body: &ReserveRequest) -> Result<Reservation, Error> {
        if body.mode == ReserveMode::DryRun {
            let detail = "dry_run holds nothing and is asked for by a call of its own".into();
            return Err(Error::Config { what: "mode", detail });
        }
        let call = Call::post("/v1/reservations")
            .body(body)?
            .service_wait(Duration::from_secs(body.wait()));
        self.call(call).await
    }

    /// What a reservation would come to, whatever mode the body states. Holds nothing.
    ///
    /// # Errors
    /// As [`Self::reserve`], for what would be refused.
    pub async fn reserve_dry_run(&self, body: &ReserveRequest) -> Result<DryRun, Error> {
        let body = ReserveRequest { mode: ReserveMode::DryRun, ..body.clone() };
        self.call(Call::post("/v1/reservations").body(&body)?).await
    }

    /// Reserves several, all or nothing.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub async fn reserve_batch(&self, body: &ReservationBatch) -> Result<Reservations, Error> {
        self.call(Call::post("/v1/reservations/batch").body(body)?).await
    }

    /// One reservation.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub async fn reservation(&self, id: ReservationId) -> Result<Reservation, Error> {
        self.call(Call::get(one(id))).await
    }

    /// Says that the guest of a reservation exists.
    ///
    /// # Errors
    /// As [`Self::reserve`]; code `reservation_expired` where it lapsed before.
    pub async fn commit_reservation(
        &self,
        id: ReservationId,
        body: &CommitReservation,
    ) -> Result<Reservation, Error> {
        self.call(Call::post(format!("{}/commit", one(id))).body(body)?).await
    }

    /// Holds a reservation for longer.
    ///
    /// # Errors
    /// As [`Self::commit_reservation`].
    pub async fn renew_reservation(
        &self,
        id: ReservationId,
        body: &RenewReservation,
    ) -> Result<Reservation, Error> {
        self.call(Call::post(format!("{}/renew", one(id))).body(body)?).await
    }

    /// Gives a reservation back, in any state.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub async fn release_reservation(&self, id: ReservationId) -> Result<Reservation, Error> {
        self.call(Call::delete(one(id))).await
    }

    /// The verdict that a request would get now, filter by filter, changing nothing.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub async fn explain(&self, body: &ExplainRequest) -> Result<Explanation, Error> {
        self.call(Call::post("/v1/explain").body(body)?).await
    }
}
