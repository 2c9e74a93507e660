//! Finding the cell, and a key for it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use plimsoll_api::Secret;
use plimsoll_client::{Client, ClientConfig, RetryPolicy, Waiting};
use plimsoll_types::TenantId;

use crate::failure::Failure;
use crate::settings::KEY_VARIABLE;
use crate::show;

/// Largest key or certificate file that is read: far above any.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Patience of calls that wait for room, in seconds: what a person waits.
const DEADLINE_WAITS_SECONDS: u64 = 90;
/// Patience of calls that wait for nothing: a restart of the cell, no more.
const DEADLINE_ANSWERS_SECONDS: u64 = 5;

/// Where the cell is and who asks.
#[derive(Args, Clone, Debug)]
pub(crate) struct Connect {
    /// Base URLs of the cell's replicas [default: the address in DATA/address]
    #[arg(long, value_name = "URL,..", value_delimiter = ',', help_heading = "Connection")]
    pub(crate) url: Vec<String>,
    /// File with the key; the variable PLIMSOLL_KEY may hold the key itself [default: a key file
    /// in DATA, the tenant's for what tenants do, else the operator's]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    pub(crate) key_file: Option<PathBuf>,
    /// The cell's data folder, where address and keys are looked for
    #[arg(long, value_name = "DIR", default_value = "plimsoll-data", help_heading = "Connection")]
    pub(crate) data: PathBuf,
    /// File with the only certificate authorities to trust, in PEM [default: the system's]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    pub(crate) ca_file: Option<PathBuf>,
    /// The tenant to act for, with an operator's key [default: the key's own, or `default`]
    #[arg(long, value_name = "TENANT", help_heading = "Connection")]
    pub(crate) tenant: Option<TenantId>,
    /// Seconds for which 429, 502, 503, 504 and a cell that cannot be reached are tried again
    /// [default: 90 where the call may wait for room, else 5; 0 tries once]
    #[arg(long, value_name = "SECONDS", help_heading = "Connection")]
    pub(crate) deadline: Option<u64>,
    /// Write JSON instead of tables
    #[arg(long, help_heading = "Connection")]
    pub(crate) json: bool,
}

/// Whose key a command takes from the data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum As {
    /// The tenant's: what it does is charged to the tenant.
    Tenant,
    /// The operator's, which sees hosts; the tenant's where there is no other.
    Viewer,
    /// The operator's.
    Operator,
}

/// How long a command's calls may take in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// They may wait for room.
    Waits,
    /// They are answered at once.
    Answers,
}

impl Connect {
    /// A client for a command, and the form of output asked for.
    ///
    /// # Errors
    /// When no cell or key is found, or they are malformed.
    pub(crate) fn client(&self, who: As, patience: Patience) -> Result<Client, Failure> {
        show::want_json(self.json);
        let mut config = ClientConfig::new(self.urls()?);
        config.key = Some(self.key(who)?);
        config.tenant = self.tenant.clone();
        if let Some(path) = &self.ca_file {
            config.ca_pem = Some(read(path, "certificates")?.into_bytes());
        }
        let usual = match patience {
            Patience::Waits => DEADLINE_WAITS_SECONDS,
            Patience::Answers => DEADLINE_ANSWERS_SECONDS,
        };
        config.retry = match self.deadline {
            Some(0) => RetryPolicy::none(),
            seconds => {
                RetryPolicy::default().with_deadline(Duration::from_secs(seconds.unwrap_or(usual)))
            }
        };
        config.on_wait = Some(Arc::new(tell));
        Ok(Client::new(config)?)
    }

    /// How long a command waits for what it has set going; `None` is not at all.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let seconds = self.deadline.unwrap_or(DEADLINE_WAITS_SECONDS);
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// The first address of the cell and the key, for what needs no client.
    ///
    /// # Errors
    /// As [`Self::client`].
    pub(crate) fn found(&self, who: As) -> Result<(String, Secret), Failure> {
        show::want_json(self.json);
        let url = self.urls()?.into_iter().next().unwrap_or_default();
        Ok((url, self.key(who)?))
    }

    fn urls(&self) -> Result<Vec<String>, Failure> {
        if !self.url.is_empty() {
            return Ok(self.url.clone());
        }
        let path = self.data.join("address");
        let text = fs::read_to_string(&path).map_err(|error| {
            Failure::usage(format!("no cell is known: {} cannot be read: {error}", path.display()))
                .hint("`plimsoll up` starts one here; --url or PLIMSOLL_URL names another")
        })?;
        Ok(vec![url_of(text.trim())])
    }

    fn key(&self, who: As) -> Result<Secret, Failure> {
        if let Some(path) = &self.key_file {
            return key_in(path);
        }
        if let Ok(key) = std::env::var(KEY_VARIABLE)
            && !key.trim().is_empty()
        {
            return Ok(Secret::new(key.trim()));
        }
        let operator = self.data.join("operator.key");
        let tenant = self.tenant.as_ref().map_or("default", TenantId::as_str);
        let tenant = self.data.join(format!("tenant-{tenant}.key"));
        let candidates = match who {
            As::Tenant => vec![tenant, operator],
            As::Viewer => vec![operator, tenant],
            As::Operator => vec![operator],
        };
        let found = candidates.iter().find(|path| path.exists());
        let Some(path) = found else {
            let names: Vec<String> =
                candidates.iter().map(|path| path.display().to_string()).collect();
            return Err(Failure::usage(format!(
                "no key is known: there is no {}",
                names.join(", no ")
            ))
            .hint("--key-file names one, or PLIMSOLL_KEY holds it"));
        };
        key_in(path)
    }
}

/// The key on the one line of a file.
///
/// # Errors
/// When it cannot be read or holds none.
pub(crate) fn key_in(path: &Path) -> Result<Secret, Failure> {
    let text = read(path, "the key")?;
    let key = text.trim();
    if key.is_empty() || key.contains(char::is_whitespace) {
        return Err(Failure::usage(format!("{} holds no key on one line", path.display())));
    }
    Ok(Secret::new(key))
}

/// Reads a small file of text.
///
/// # Errors
/// When it is no file of text within the bound.
pub(crate) fn read(path: &Path, what: &str) -> Result<String, Failure> {
    let name = path.display();
    let fail = |why: String| Failure::usage(format!("{what} cannot be read from {name}: {why}"));
    let size = fs::metadata(path).map_err(|error| fail(error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(fail(format!("{size} bytes are more than {FILE_BYTES_MAX}")));
    }
    fs::read_to_string(path).map_err(|error| fail(error.to_string()))
}

/// The URL of an address that a cell wrote down: one listening everywhere is reached by loopback.
pub(crate) fn url_of(address: &str) -> String {
    let (scheme, place) = address.split_once("://").unwrap_or(("http", address));
    let Ok(mut bound) = place.parse::<SocketAddr>() else {
        return format!("{scheme}://{place}");
    };
    if bound.ip().is_unspecified() {
        bound.set_ip(match bound.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        });
    }
    format!("{scheme}://{bound}")
}

/// Says what is waited for.
fn tell(waiting: &Waiting<'_>) {
    show::say(&format!(
        "waiting {:.1} s before attempt {} ({:.0} s of {} s gone): {}",
        waiting.delay.as_secs_f64(),
        waiting.attempts + 1,
        waiting.elapsed.as_secs_f64(),
        waiting.deadline.as_secs(),
        waiting.cause
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(data: &Path) -> Connect {
        Connect {
            url: Vec::new(),
            key_file: None,
            data: data.to_owned(),
            ca_file: None,
            tenant: None,
            deadline: None,
            json: false,
        }
    }

    #[test]
    fn addresses_become_urls_that_can_be_reached() {
        assert_eq!(url_of("127.0.0.1:7070"), "http://127.0.0.1:7070");
        assert_eq!(url_of("0.0.0.0:7070"), "http://127.0.0.1:7070");
        assert_eq!(url_of("[::]:7070"), "http://[::1]:7070");
        assert_eq!(url_of("https://0.0.0.0:7070"), "https://127.0.0.1:7070");
        assert_eq!(url_of("https://cell.example:7070"), "https://cell.example:7070");
    }

    #[test]
    fn the_data_folder_holds_address_and_keys() {
        let folder = tempfile::tempdir().unwrap();
        let found = connect(folder.path());
        assert!(found.urls().is_err());
        fs::write(folder.path().join("address"), "127.0.0.1:9\n").unwrap();
        assert_eq!(found.urls().unwrap(), ["http://127.0.0.1:9"]);
        assert!(found.key(As::Viewer).is_err());
        fs::write(folder.path().join("tenant-default.key"), "tenant\n").unwrap();
        assert_eq!(found.key(As::Viewer).unwrap().expose(), "tenant");
        assert!(found.key(As::Operator).is_err());
        fs::write(folder.path().join("operator.key"), "operator\n").unwrap();
        assert_eq!(found.key(As::Viewer).unwrap().expose(), "operator");
        assert_eq!(found.key(As::Tenant).unwrap().expose(), "tenant");
        let other = Connect { tenant: Some("acme".parse().unwrap()), ..found };
        assert_eq!(other.key(As::Tenant).unwrap().expose(), "operator");
    }

    #[test]
    fn a_key_file_holds_one_word() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        for text in ["", "\n", "two words\n"] {
            fs::write(&path, text).unwrap();
            assert!(key_in(&path).is_err(), "{text:?}");
        }
    }
}
