//! Events and the endpoints that they are sent to.

use std::fmt;

use plimsoll_types::{EndpointId, EventId, TenantId, bounds};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::ToSchema;

use crate::input::{Body, FieldError, check_text};
use crate::page::{ListQuery, Pairs, push, unknown, word};
use crate::schema;
use crate::secret::Secret;
use crate::time::Time;

/// Longest URL of an endpoint in bytes: what proxies commonly take.
const URL_LENGTH_MAX: usize = 2048;

macro_rules! events {
    ($($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)*) => {
        /// What happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventType {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl EventType {
            /// Every type.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The word at every edge.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// What it says, in a sentence.
            #[must_use]
            pub fn about(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($doc),+).trim_ascii(),)*
                }
            }
        }
    };
}

events! {
    /// 80 % of a budget is used.
    QuotaWarning = "quota.warning",
    /// A budget is used up.
    QuotaExhausted = "quota.exhausted",
    /// Idle resources were paused.
    QuotaSuspended = "quota.suspended",
    /// The clock to deletion has started; names what and when.
    QuotaDeletionScheduled = "quota.deletion_scheduled",
    /// An upgrade, a payment method or a new period lifted all of it.
    QuotaResumed = "quota.resumed",
    /// A paying tenant used more than its budget.
    QuotaOverage = "quota.overage",
    /// What was announced was deleted.
    QuotaDeleted = "quota.deleted",
    /// A tenant cannot be told of a deletion, which therefore does not happen.
    QuotaUnnotified = "quota.unnotified",
    /// A tenant's plan cannot be read; its last known limits hold.
    QuotaPlanUnknown = "quota.plan_unknown",
    /// A record or a figure was corrected to what its host reports.
    QuotaCorrected = "quota.corrected",
    /// The shape of use is that of abuse.
    AbuseSuspected = "abuse.suspected",
    /// A sandbox was admitted.
    SandboxCreated = "sandbox.created",
    /// A sandbox waits for room.
    SandboxQueued = "sandbox.queued",
    /// A sandbox runs.
    SandboxStarted = "sandbox.started",
    /// A sandbox's pause has finished.
    SandboxPaused = "sandbox.paused",
    /// A sandbox's process ended by request; its record and slot stay.
    SandboxStopped = "sandbox.stopped",
    /// A sandbox runs again.
    SandboxResumed = "sandbox.resumed",
    /// A sandbox was paused to make room.
    SandboxPreempted = "sandbox.preempted",
    /// A sandbox was paused after its longest run.
    SandboxMaxRun = "sandbox.max_run",
    /// A sandbox was deleted by a lifecycle limit.
    SandboxExpired = "sandbox.expired",
    /// A sandbox was terminated.
    SandboxTerminated = "sandbox.terminated",
    /// A sandbox failed.
    SandboxFailed = "sandbox.failed",
    /// A reservation that had lapsed was found to run all the same, and is charged again.
    ReservationRevived = "reservation.revived",
    /// A host was seen for the first time.
    HostEnrolled = "host.enrolled",
    /// A host was set aside after failures or refusals.
    HostSetAside = "host.set_aside",
    /// A host runs guests that it should not have.
    HostUnexpectedGuests = "host.unexpected_guests",
    /// An operator has ended one of them.
    HostUnexpectedGuestEnded = "host.unexpected_guest_ended",
    /// An operator has begun to empty a host.
    HostDraining = "host.draining",
    /// An operator has taken a host back in.
    HostUndrained = "host.undrained",
    /// A host that was declared dead has come back.
    HostReturned = "host.returned",
    /// A host's reports have stopped.
    HostStale = "host.stale",
    /// A host was declared dead.
    HostDead = "host.dead",
    /// A host acted under memory pressure.
    HostPressure = "host.pressure",
    /// A policy snapshot was taken.
    PolicyAccepted = "policy.accepted",
    /// A policy snapshot was rejected.
    PolicyRejected = "policy.rejected",
    /// A staged push was halted.
    RolloutHalted = "rollout.halted",
    /// A cell was started with `--renew-keys` and made the key of a file anew; says whether the key
    /// that stood there is revoked.
    KeyRenewed = "key.renewed",
    /// A webhook endpoint is sent nothing any more, after three days in which nothing was taken, an
    /// answer of 410 Gone, or by its owner; says why. Other endpoints of its owner, and
    /// `GET /v1/events`, tell of it.
    WebhookDisabled = "webhook.disabled",
    /// An endpoint was tried out.
    EndpointTest = "endpoint.test",
}

impl EventType {
    /// Whether it is about the fleet and not about one tenant: operators only.
    #[must_use]
    pub const fn is_operators(self) -> bool {
        matches!(
            self,
            Self::HostEnrolled
                | Self::HostSetAside
                | Self::HostUnexpectedGuests
                | Self::HostUnexpectedGuestEnded
                | Self::HostDraining
                | Self::HostUndrained
                | Self::HostReturned
                | Self::HostStale
                | Self::HostDead
                | Self::HostPressure
                | Self::PolicyAccepted
                | Self::PolicyRejected
                | Self::RolloutHalted
                | Self::AbuseSuspected
                | Self::QuotaUnnotified
                | Self::QuotaPlanUnknown
                | Self::QuotaCorrected
                | Self::KeyRenewed
        )
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for EventType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|event| event.as_str() == text);
        found.copied().ok_or_else(|| {
            let words: Vec<_> = Self::ALL.iter().map(|event| event.as_str()).collect();
            format!("{text:?} is none of {}", words.join(", "))
        })
    }
}

impl Serialize for EventType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for EventType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// One event, as pulled and as sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// The same on every delivery.
    #[schema(value_type = String)]
    pub id: EventId,
    /// What happened: an [`EventType`], or a type that this version does not know.
    #[serde(rename = "type")]
    pub kind: String,
    /// When.
    pub at: Time,
    /// Whose; `null` for events of the fleet.
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantId>,
    /// What there is to know about it, by type.
    #[schema(value_type = Object)]
    pub data: serde_json::Value,
}

/// Query of `GET /v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Most rows; the cursor stands in `after`.
    pub page: ListQuery,
    /// Only events after this one, by id.
    pub after: Option<EventId>,
    /// Only these types; all where empty. May be given more than once.
    pub kinds: Vec<EventType>,
}

impl EventQuery {
    /// Reads the query.
    ///
    /// # Errors
    /// Names the parameter that is unknown or out of its bound.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<Self, FieldError> {
        let mut query = Self::default();
        for (name, value) in pairs {
            match name.as_str() {
                "after" if value.is_empty() => query.after = None,
                "after" => query.after = Some(word("after", value)?),
                "type" => query.kinds.push(word("type", value)?),
                _ if query.page.take(name, value)? => {}
                _ => return Err(unknown(name, "after, type, limit, cursor")),
            }
        }
        Ok(query)
    }

    /// The query as pairs.
    #[must_use]
    pub fn to_pairs(&self) -> Pairs {
        let mut pairs = self.page.to_pairs();
        push(&mut pairs, "after", self.after);
        for kind in &self.kinds {
            push(&mut pairs, "type", Some(kind));
        }
        pairs
    }
}

/// Body of `POST /v1/webhooks/endpoints`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateEndpoint {
    /// Where to send.
    pub url: String,
    /// Which types; all that the key may see where empty.
    #[serde(default)]
    #[schema(value_type = Vec<schema::EventTypes>)]
    pub events: Vec<EventType>,
    /// For people.
    #[serde(default)]
    pub description: String,
}

fn check_url(url: &str) -> Result<(), FieldError> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let plain = rest.is_some_and(|rest| {
        !rest.is_empty()
            && !rest.starts_with('/')
            && rest.bytes().all(|byte| byte.is_ascii_graphic())
    });
    if plain && url.len() <= URL_LENGTH_MAX {
        return Ok(());
    }
    let bound = format!("an http or https URL of at most {URL_LENGTH_MAX} bytes");
    Err(FieldError::new("url", format_args!("{url:?}"), bound))
}

fn check_description(description: Option<&str>) -> Result<(), FieldError> {
    description.map_or(Ok(()), |text| check_text("description", text, bounds::LABEL_LENGTH_MAX))
}

impl Body for CreateEndpoint {
    fn validate(&self) -> Result<(), FieldError> {
        check_url(&self.url)?;
        check_description(Some(&self.description))
    }
}

/// Body of `PATCH /v1/webhooks/endpoints/{id}`: what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointPatch {
    /// Where to send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Which types, the whole list anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<schema::EventTypes>>)]
    pub events: Option<Vec<EventType>>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether anything is sent; enabling one that was given up on tries it anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Makes a new signing secret, which the answer shows this once. For 24 hours deliveries carry a
    /// signature with the old one beside it, so that the receiver can change over in between.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rotate_secret: bool,
}

impl Body for EndpointPatch {
    fn validate(&self) -> Result<(), FieldError> {
        self.url.as_deref().map_or(Ok(()), check_url)?;
        check_description(self.description.as_deref())
    }
}

/// An endpoint, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Endpoint {
    /// Its id.
    #[schema(value_type = String)]
    pub id: EndpointId,
    /// Whose; `null` for an operator's.
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantId>,
    /// Where to send.
    pub url: String,
    /// Which types; all that its owner may see where empty.
    pub events: Vec<String>,
    /// For people.
    pub description: String,
    /// Whether anything is sent.
    #[serde(default)]
    pub enabled: bool,
    /// Why nothing is sent, where it was given up on.
    #[serde(default)]
    pub disabled_reason: Option<String>,
    /// Since when its deliveries have failed.
    #[serde(default)]
    pub failing_since: Option<Time>,
    /// When it was made.
    pub created_at: Time,
}

/// Answer to the making of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewEndpoint {
    /// What deliveries are signed with, shown this once.
    pub secret: Secret,
    /// The rest.
    #[serde(flatten)]
    pub info: Endpoint,
}

/// Answer to a change of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PatchedEndpoint {
    /// The new secret, shown this once, where one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// The rest.
    #[serde(flatten)]
    pub info: Endpoint,
}

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// Not delivered yet.
    Pending,
    /// Taken by the endpoint.
    Delivered,
    /// Given up on.
    Failed,
}

/// One event on its way to one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    /// The event, and `webhook-id` of every attempt.
    #[schema(value_type = String)]
    pub event_id: EventId,
    /// What happened: an [`EventType`], or a type that this version does not know.
    #[serde(rename = "type")]
    pub kind: String,
    /// Where it stands.
    pub state: DeliveryState,
    /// Attempts so far.
    pub attempts: u32,
    /// The endpoint's last status; `null` where it gave none.
    pub last_status: Option<u16>,
    /// What went wrong last.
    #[serde(default)]
    pub last_error: Option<String>,
    /// The last attempt.
    pub last_attempt_at: Option<Time>,
    /// The next attempt.
    pub next_attempt_at: Option<Time>,
    /// When the event happened.
    pub created_at: Time,
}
