//! Quota, use, webhooks and events.

use plimsoll_api::{
    CreateEndpoint, Delivery, Endpoint, EndpointPatch, Event, EventQuery, ListQuery, NewEndpoint,
    Page, PatchedEndpoint, QuotaView, UsageQuery, UsageRow,
};
use plimsoll_types::EndpointId;

use crate::call::Call;
use crate::error::Error;
use crate::retry::Repeat;
use crate::transport::Client;

const ENDPOINTS: &str = "/v1/webhooks/endpoints";

fn endpoint(id: EndpointId) -> String {
    format!("{ENDPOINTS}/{id}")
}

impl Client {
    /// The tenant's limits and what is used of them.
    ///
    /// # Errors
    /// [`Error::Refused`] for good, [`Error::CapacityUnavailable`] where patience ended.
    pub async fn quota(&self) -> Result<QuotaView, Error> {
        self.call(Call::get("/v1/quota")).await
    }

    /// Metered use.
    ///
    /// # Errors
    /// As [`Self::quota`].
    pub async fn usage(&self, query: &UsageQuery) -> Result<Page<UsageRow>, Error> {
        self.call(Call::get("/v1/usage").query(query.to_pairs())).await
    }

    /// Makes a webhook endpoint. Repeated only where it was certainly not made.
    ///
    /// # Errors
    /// As [`Self::quota`].
    pub async fn create_endpoint(&self, body: &CreateEndpoint) -> Result<NewEndpoint, Error> {
        let call = Call::post(ENDPOINTS).body(body)?.idempotent(None)?.repeat(Repeat::IfUndone);
        self.call(call).await
    }

    /// A page of webhook endpoints.
    ///
    /// # Errors
    /// As [`Self::quota`].
    pub async fn endpoints(&self, query: &ListQuery) -> Result<Page<Endpoint>, Error> {
        self.call(Call::get(ENDPOINTS).query(query.to_pairs())).await
    }

    /// One webhook endpoint.
    ///
    /// # Errors
    /// As [`Self::quota`].
    pub async fn endpoint(&self, id: EndpointId) -> Result<Endpoint, Error> {
        self.call(Call::get(endpoint(id))).await
    }

    /// Changes a webhook endpoint.
    ///
    /// # Errors
    /// As [`Self::quota`].
    pub async fn patch_endpoint(
        &self,
        id: EndpointId,
        body: &EndpointPatch,
    ) -> Result<PatchedEndpoint, Error> {
        self.call(Call::patch(endpoint(id)).body(body)?).await
    }

    /// Removes a webhook endpoint.
    ///
    /// # Errors
    /// As [`Self::quota`].
    pub async fn delete_endpoint(&self, id: EndpointId) -> Result<(), Error> {
        self.call_for_nothing(Call::delete(endpoint(id))).await
    }

    /// Sends a test event to a webhook endpoint and answers how that came out.
    ///
    /// # Errors
    /// As [`Self::quota`].
    pub async fn test_endpoint(&self, id: EndpointId) -> Result<Delivery, Error> {
        let call = Call::post(format!("{}/test", endpoint(id))).repeat(Repeat::IfUndone);
        self.call(call).await
    }

    /// A page of deliveries to a webhook endpoint.
    ///
    /// # Errors
    /// As [`Self::quota`].
    pub async fn deliveries(
        &self,
        id: EndpointId,
        query: &ListQuery,
    ) -> Result<Page<Delivery>, Error> {
        let call = Call::get(format!("{}/deliveries", endpoint(id))).query(query.to_pairs());
        self.call(call).await
    }

    /// A page of events.
    ///
    /// # Errors
    /// As [`Self::quota`].
    pub async fn events(&self, query: &EventQuery) -> Result<Page<Event>, Error> {
        self.call(Call::get("/v1/events").query(query.to_pairs())).await
    }
}
