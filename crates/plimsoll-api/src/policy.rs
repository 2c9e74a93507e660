//! Policy snapshots: the signed envelope and what it holds.

use plimsoll_types::{PolicyMode, PoolName, bounds};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::input::{Body, FieldError, check_text};
use crate::schema;
use crate::time::Time;

/// The payload type of a policy snapshot's envelope.
pub const DSSE_PAYLOAD_TYPE: &str = "application/vnd.plimsoll.policy+json";
/// Largest payload of an envelope in bytes, encoded: a snapshot is a page of text.
pub const POLICY_PAYLOAD_BYTES_MAX: usize = 64 * 1024;
/// Most signatures of one envelope: enough for keys in rotation.
const SIGNATURES_MAX: usize = 8;

/// Body of `PUT /v1/admin/policy`: a DSSE envelope. Its names are those of that convention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Envelope {
    /// What the payload is: [`DSSE_PAYLOAD_TYPE`].
    pub payload_type: String,
    /// The snapshot as JSON, in base64.
    pub payload: String,
    /// Signatures over the payload's type and bytes.
    pub signatures: Vec<EnvelopeSignature>,
}

/// One signature of an envelope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvelopeSignature {
    /// Which key; a hint, not evidence.
    #[serde(default)]
    pub keyid: String,
    /// The ed25519 signature in base64.
    pub sig: String,
}

impl Body for Envelope {
    fn validate(&self) -> Result<(), FieldError> {
        if self.payload_type != DSSE_PAYLOAD_TYPE {
            let given = format_args!("{:?}", self.payload_type);
            return Err(FieldError::new("payloadType", given, DSSE_PAYLOAD_TYPE));
        }
        if self.payload.len() > POLICY_PAYLOAD_BYTES_MAX {
            let bound = format!("at most {POLICY_PAYLOAD_BYTES_MAX} bytes");
            return Err(FieldError::new("payload", self.payload.len(), bound));
        }
        if !(1..=SIGNATURES_MAX).contains(&self.signatures.len()) {
            let bound = format!("1 to {SIGNATURES_MAX} signatures");
            return Err(FieldError::new("signatures", self.signatures.len(), bound));
        }
        for (at, signature) in self.signatures.iter().enumerate() {
            let within = |error: FieldError| error.within(&format!("signatures[{at}]"));
            check_text("keyid", &signature.keyid, bounds::LABEL_LENGTH_MAX).map_err(within)?;
            check_text("sig", &signature.sig, bounds::LABEL_LENGTH_MAX).map_err(within)?;
        }
        Ok(())
    }
}

/// The bytes that a signature of an envelope covers: the convention's pre-authentication encoding
/// of type and payload, so that one type's payload is never taken for another's.
///
/// ```
/// let bytes = plimsoll_api::dsse_pre_authentication("http://example.com/HelloWorld", b"hello world");
/// assert_eq!(bytes, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
/// ```
#[must_use]
pub fn dsse_pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes =
        format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// A policy snapshot: one pool's overcommit ratio, share and staleness bounds for one cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySnapshot {
    /// Strictly newer than any before it for this pool and cell.
    pub version: u64,
    /// The pool.
    #[schema(value_type = String)]
    pub pool: PoolName,
    /// The cell that it is for.
    pub cell: String,
    /// When it was made.
    pub published_at: Time,
    /// Physical memory of the whole pool over all cells.
    pub physical_capacity_mib: u64,
    /// Promises for each unit of physical memory.
    pub overcommit_ratio_bp: u64,
    /// This cell's share of the pool.
    pub cell_share_bp: u64,
    /// Older than this, the ratio is reduced.
    pub soft_bound_seconds: u64,
    /// Older than this, there is no overcommit.
    pub hard_bound_seconds: u64,
    /// By how much the ratio is reduced.
    pub conservative_step_bp: u64,
    /// Largest change of the budget from the snapshot held.
    pub budget_delta_max_bp: u64,
    /// Why this snapshot may change the budget by more, where an operator signed it so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wide_step_reason: Option<String>,
}

/// What a cell holds for one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    /// The pool.
    #[schema(value_type = String)]
    pub pool: PoolName,
    /// How permissive it is by its age.
    #[schema(value_type = schema::PolicyMode)]
    pub mode: PolicyMode,
    /// Its age, by receipt or publication, whichever is older; `null` for the local policy.
    pub age_seconds: Option<u64>,
    /// The snapshot; `null` for the local policy.
    pub snapshot: Option<PolicySnapshot>,
    /// When it was received.
    #[serde(default)]
    pub received_at: Option<Time>,
    /// The budget that it yields now; `null` without a ceiling.
    pub budget_mib: Option<u64>,
    /// Configured memory admitted under it.
    #[serde(default)]
    pub promised_mib: u64,
}
