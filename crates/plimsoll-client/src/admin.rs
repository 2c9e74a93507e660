//! What operators do.

use plimsoll_api::{
    CreateKey, CreateTenant, DecisionQuery, DecisionView, EnrolHost, Envelope, HostView, Key,
    LimitsPatch, ListQuery, NewKey, Page, Plan, PolicyView, Pool, PoolPatch, Status, Template,
    TemplatePatch, Tenant, TenantPatch,
};
use plimsoll_types::{DecisionId, HostId, KeyId, PlanId, PoolName, TemplateName, TenantId};
use reqwest::Method;

use crate::call::Call;
use crate::error::Error;
use crate::retry::Repeat;
use crate::transport::Client;

/// Declares the five calls of one kind of object.
macro_rules! objects {
    (
        $path:literal, $what:literal, $id:ty, $make:ty, $patch:ty, $object:ty:
        $create:ident, $list:ident, $get:ident, $change:ident, $remove:ident
    ) => {
        impl Client {
            #[doc = concat!("Makes a ", $what, ".")]
            ///
            /// # Errors
            /// [`Error::Refused`] for good, [`Error::CapacityUnavailable`] where patience ended.
            pub async fn $create(&self, body: &$make) -> Result<$object, Error> {
                self.call(Call::post($path).body(body)?.idempotent(None)?).await
            }

            #[doc = concat!("A page of ", $what, "s.")]
            ///
            /// # Errors
            /// As the making of one.
            pub async fn $list(&self, query: &ListQuery) -> Result<Page<$object>, Error> {
                self.call(Call::get($path).query(query.to_pairs())).await
            }

            #[doc = concat!("One ", $what, ".")]
            ///
            /// # Errors
            /// As the making of one.
            pub async fn $get(&self, id: &$id) -> Result<$object, Error> {
                self.call(Call::get(format!("{}/{id}", $path))).await
            }

            #[doc = concat!("Changes a ", $what, ".")]
            ///
            /// # Errors
            /// As the making of one.
            pub async fn $change(&self, id: &$id, body: &$patch) -> Result<$object, Error> {
                self.call(Call::patch(format!("{}/{id}", $path)).body(body)?).await
            }

            #[doc = concat!("Removes a ", $what, ".")]
            ///
            /// # Errors
            /// As the making of one.
            pub async fn $remove(&self, id: &$id) -> Result<(), Error> {
                self.call_for_nothing(Call::delete(format!("{}/{id}", $path))).await
            }
        }
    };
}

objects!(
    "/v1/admin/plans", "plan", PlanId, Plan, LimitsPatch, Plan:
    create_plan, plans, plan, patch_plan, delete_plan
);
objects!(
    "/v1/admin/tenants", "tenant", TenantId, CreateTenant, TenantPatch, Tenant:
    create_tenant, tenants, tenant, patch_tenant, delete_tenant
);
objects!(
    "/v1/admin/pools", "pool", PoolName, Pool, PoolPatch, Pool:
    create_pool, pools, pool, patch_pool, delete_pool
);
objects!(
    "/v1/admin/templates", "template", TemplateName, Template, TemplatePatch, Template:
    create_template, templates, template, patch_template, delete_template
);

impl Client {
    /// Makes a key. Repeated only where it was certainly not made: its secret is shown once.
    ///
    /// # Errors
    /// [`Error::Refused`] for good, [`Error::CapacityUnavailable`] where patience ended.
    pub async fn create_key(&self, body: &CreateKey) -> Result<NewKey, Error> {
        let call =
            Call::post("/v1/admin/keys").body(body)?.idempotent(None)?.repeat(Repeat::IfUndone);
        self.call(call).await
    }

    /// A page of keys, without their secrets.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn keys(&self, query: &ListQuery) -> Result<Page<Key>, Error> {
        self.call(Call::get("/v1/admin/keys").query(query.to_pairs())).await
    }

    /// Removes a key.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn delete_key(&self, id: KeyId) -> Result<(), Error> {
        self.call_for_nothing(Call::delete(format!("/v1/admin/keys/{id}"))).await
    }

    /// Says where a provider of an external pool is.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn enrol_host(&self, body: &EnrolHost) -> Result<HostView, Error> {
        self.call(Call::post("/v1/admin/hosts").body(body)?).await
    }

    /// Ends a guest that a host has and should not have, by the name that its view gives.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn end_unexpected_guest(&self, host: &HostId, guest: &str) -> Result<(), Error> {
        let guest: String = guest.chars().filter(|letter| !"/?#%".contains(*letter)).collect();
        let path = format!("/v1/admin/hosts/{host}/guests/{guest}");
        self.call_for_nothing(Call::delete(path)).await
    }

    /// A page of hosts as the cell sees them.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn hosts(&self, query: &ListQuery) -> Result<Page<HostView>, Error> {
        self.call(Call::get("/v1/admin/hosts").query(query.to_pairs())).await
    }

    /// One host as the cell sees it.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn host(&self, id: &HostId) -> Result<HostView, Error> {
        self.call(Call::get(format!("/v1/admin/hosts/{id}"))).await
    }

    /// Places nothing new on a host.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn drain_host(&self, id: &HostId) -> Result<HostView, Error> {
        self.call(Call::post(format!("/v1/admin/hosts/{id}/drain"))).await
    }

    /// Takes a host back in.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn undrain_host(&self, id: &HostId) -> Result<HostView, Error> {
        self.call(Call::post(format!("/v1/admin/hosts/{id}/undrain"))).await
    }

    /// Forgets a host that is dead and empty.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn delete_host(&self, id: &HostId) -> Result<(), Error> {
        self.call_for_nothing(Call::delete(format!("/v1/admin/hosts/{id}"))).await
    }

    /// A page of the decision log.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn decisions(&self, query: &DecisionQuery) -> Result<Page<DecisionView>, Error> {
        self.call(Call::get("/v1/admin/decisions").query(query.to_pairs())).await
    }

    /// One decision.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn decision(&self, id: DecisionId) -> Result<DecisionView, Error> {
        self.call(Call::get(format!("/v1/admin/decisions/{id}"))).await
    }

    /// Hands a signed policy snapshot to the cell.
    ///
    /// # Errors
    /// As [`Self::create_key`]; status 409 where it was rejected, with why.
    pub async fn put_policy(&self, body: &Envelope) -> Result<PolicyView, Error> {
        self.call(Call::new(Method::PUT, "/v1/admin/policy").body(body)?).await
    }

    /// What policy the cell holds, pool by pool.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn policies(&self) -> Result<Page<PolicyView>, Error> {
        self.call(Call::get("/v1/admin/policy")).await
    }

    /// How the cell is.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn status(&self) -> Result<Status, Error> {
        self.call(Call::get("/v1/admin/status")).await
    }

    /// Whether a replica is ready: its state is loaded and it leads. Asked once.
    ///
    /// # Errors
    /// What went wrong on the way; a no is no error.
    pub async fn is_ready(&self) -> Result<bool, Error> {
        match self.send(&Call::get("/readyz").repeat(Repeat::Never)).await {
            Ok(_) => Ok(true),
            Err(Error::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The cell's metrics as text.
    ///
    /// # Errors
    /// As [`Self::create_key`].
    pub async fn metrics(&self) -> Result<String, Error> {
        let answer = self.send(&Call::get("/metrics")).await?;
        Ok(String::from_utf8_lossy(&answer.bytes).into_owned())
    }
}
