//! Where webhooks may go: nowhere inside, unless the operator says so.
//!
//! What counts is the address that is connected to. A URL that holds an address is checked as it
//! stands; a name is resolved by a resolver that hands out public addresses only, so that a name
//! which changes its mind between a check and a connection gains nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use plimsoll_api::FieldError;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Longest wait for a name while an endpoint is made: a name that cannot be resolved now is
/// looked at again at each delivery.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(2);
const PUBLIC: &str = "an address that is public, unless the operator allows others";

/// Whether an address is no place to send webhooks to: this machine, its network, or nobody.
pub(super) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast()
                || v4.is_documentation()
                // "This network", shared address space (RFC 6598), protocol assignments, the old
                // relays of 6to4, benchmarks, and reserved.
                || a == 0
                || (a == 100 && (64..128).contains(&b))
                || (a == 192 && b == 0 && c == 0)
                || (a == 192 && b == 88 && c == 99)
                || (a == 198 && (18..20).contains(&b))
                || a >= 240
        }
        IpAddr::V6(v6) => {
            let [a, b, c, d, e, f, g, h] = v6.segments();
            let v4 = |high: u16, low: u16| {
                let ([p, q], [r, s]) = (high.to_be_bytes(), low.to_be_bytes());
                is_private(IpAddr::V4(Ipv4Addr::new(p, q, r, s)))
            };
            if let Some(mapped) = v6.to_ipv4_mapped() {
                return is_private(IpAddr::V4(mapped));
            }
            if [a, b, c, d, e, f] == [0x64, 0xff9b, 0, 0, 0, 0] {
                // NAT64: how a network without IPv4 reaches it.
                return v4(g, h);
            }
            // All that is public lies in 2000::/3. Of that, not: protocol assignments with Teredo
            // (2001::/23), documentation, 6to4, which embeds an IPv4 address.
            (a & 0xe000) != 0x2000
                || (a == 0x2001 && b < 0x200)
                || (a == 0x2001 && b == 0xdb8)
                || a == 0x2002
                || (a == 0x3fff && b < 0x1000)
        }
    }
}

/// A host that is an address.
fn literal(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Checks what a URL says for itself.
///
/// # Errors
/// Names what is wrong with it.
pub(crate) fn check_url(url: &str, private: bool) -> Result<Url, FieldError> {
    let refuse =
        |given: &str, bound: &str| FieldError::new("url", format_args!("{given:?}"), bound);
    let parsed = Url::parse(url).map_err(|_| refuse(url, "an http or https URL"))?;
    if !matches!(parsed.scheme(), "https" | "http") {
        return Err(refuse(parsed.scheme(), "an http or https URL"));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(refuse("a URL with credentials", "a URL without credentials"));
    }
    if private {
        return Ok(parsed);
    }
    let host = parsed.host_str().unwrap_or_default().trim_end_matches('.');
    let local = host.is_empty() || host == "localhost" || host.ends_with(".localhost");
    if local || literal(&parsed).is_some_and(is_private) {
        return Err(refuse(host, PUBLIC));
    }
    if parsed.scheme() != "https" {
        return Err(refuse(
            parsed.scheme(),
            "an https URL: what is sent must not be read on the way",
        ));
    }
    Ok(parsed)
}

/// Checks what the name in a URL stands for now, where that can be found out.
///
/// # Errors
/// When it stands for an address inside.
pub(crate) async fn check_names(url: &Url, private: bool) -> Result<(), FieldError> {
    let Some(host) = url.host_str().filter(|_| !private && literal(url).is_none()) else {
        return Ok(());
    };
    let looked = tokio::time::timeout(LOOK_UP_TIMEOUT, tokio::net::lookup_host((host, 0))).await;
    let Ok(Ok(mut addresses)) = looked else { return Ok(()) };
    if addresses.any(|address| is_private(address.ip())) {
        let given = format_args!("{host:?}, which stands for an address inside");
        return Err(FieldError::new("url", given, PUBLIC));
    }
    Ok(())
}

/// Resolves names to addresses that may be connected to.
#[derive(Debug)]
pub(super) struct PublicOnly {
    pub(super) private: bool,
}

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        let private = self.private;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> =
                found.filter(|address| private || !is_private(address.ip())).collect();
            if allowed.is_empty() {
                let why = "the name stands for no address that webhooks may be sent to";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why).into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_lead_inside_are_known() {
        for inside in [
            "127.0.0.1",
            "127.9.9.9",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "0.1.2.3",
            "100.64.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "::1",
            "::",
            "::127.0.0.1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
        ] {
            assert!(is_private(inside.parse().unwrap()), "{inside}");
        }
        for outside in [
            "1.1.1.1",
            "100.128.0.1",
            "172.32.0.1",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
        ] {
            assert!(!is_private(outside.parse().unwrap()), "{outside}");
        }
    }

    #[test]
    fn urls_are_checked_in_every_way_of_writing_an_address() {
        for bad in [
            "https://127.0.0.1/x",
            "https://127.1/x",
            "https://2130706433/x",
            "https://0x7f.0.0.1/x",
            "https://[::ffff:127.0.0.1]/x",
            "https://localhost./x",
            "https://a.localhost/x",
            "https://user@example.com/x",
            "https://:word@example.com/x",
            "http://example.com/x",
            "ftp://example.com/x",
        ] {
            let error = check_url(bad, false).unwrap_err();
            assert!(!error.to_string().contains("word"), "{error}");
        }
        assert!(check_url("https://example.com:8443/x?y", false).is_ok());
        assert!(check_url("http://127.0.0.1:9/x", true).is_ok());
        assert!(check_url("ftp://127.0.0.1:9/x", true).is_err());
    }

    #[tokio::test]
    async fn a_name_that_stands_for_this_machine_resolves_to_nothing() {
        let resolve = |private| PublicOnly { private }.resolve("localhost".parse().unwrap());
        assert!(resolve(false).await.is_err());
        assert!(resolve(true).await.unwrap().count() > 0);
        let url = Url::parse("https://localhost/x").unwrap();
        assert!(check_names(&url, false).await.is_err());
        assert!(check_names(&url, true).await.is_ok());
    }
}
