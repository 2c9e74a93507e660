//! Signatures, as the Standard Webhooks convention has them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use plimsoll_engine::rows::SigningSecret;
use plimsoll_types::{Millis, Timestamp};
use sha2::Sha256;

/// What a signing secret starts with.
const PREFIX: &str = "whsec_";
/// Bytes of a signing secret: as many as the digest that it keys. The convention takes 24 to 64.
const BYTES: usize = 32;
/// After a new secret was made, deliveries are signed with the old one too for so long.
pub(crate) const SECRET_OVERLAP: Millis = Millis(24 * 3_600_000);

/// A fresh secret.
///
/// # Errors
/// When the system gives no randomness.
pub(crate) fn new_secret() -> Result<String, getrandom::Error> {
    let mut secret = [0_u8; BYTES];
    getrandom::fill(&mut secret)?;
    Ok(format!("{PREFIX}{}", STANDARD.encode(secret)))
}

/// The value of `webhook-signature`: one signature for each secret that is valid now.
pub(super) fn signatures(
    secrets: &[SigningSecret],
    now: Timestamp,
    id: &str,
    seconds: i64,
    body: &[u8],
) -> String {
    let valid = secrets.iter().filter(|secret| secret.valid_until.is_none_or(|until| now < until));
    let each = valid.filter_map(|secret| signature(&secret.secret, id, seconds, body));
    each.collect::<Vec<_>>().join(" ")
}

fn signature(secret: &str, id: &str, seconds: i64, body: &[u8]) -> Option<String> {
    let key = STANDARD.decode(secret.strip_prefix(PREFIX)?).ok()?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
    mac.update(format!("{id}.{seconds}.").as_bytes());
    mac.update(body);
    Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the convention's specification.
    #[test]
    fn the_published_example_comes_out() {
        let secret = SigningSecret {
            secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned(),
            valid_until: None,
        };
        let body = br#"{"test": 2432232314}"#;
        let now = Timestamp(1_614_265_330_000);
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let signed = signatures(std::slice::from_ref(&secret), now, id, 1_614_265_330, body);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");

        let old = SigningSecret { valid_until: Some(now + Millis(1)), ..secret.clone() };
        let both = signatures(&[secret.clone(), old.clone()], now, id, 1_614_265_330, body);
        assert_eq!(both.split(' ').count(), 2);
        let later = now + Millis(1);
        let one = signatures(&[secret, old], later, id, 1_614_265_330, body);
        assert_eq!(one.split(' ').count(), 1);
    }

    #[test]
    fn fresh_secrets_have_the_form_of_the_convention() {
        let (one, other) = (new_secret().unwrap(), new_secret().unwrap());
        assert_ne!(one, other);
        let key = STANDARD.decode(one.strip_prefix("whsec_").unwrap()).unwrap();
        assert!((24..=64).contains(&key.len()));
    }
}
