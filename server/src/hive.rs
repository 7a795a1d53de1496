//! The URL of a hive.

use crate::percent::decoded;
use crate::{base64, head};
use hyper::Uri;
use std::fmt;
use std::str::FromStr;

/// The URL of a hive. It is printed without a user name and password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hive {
    /// `HOST:PORT`, as written in the URL.
    pub(super) authority: String,
    pub(super) host: String,
    pub(super) port: u16,
    /// Prefix of all paths.
    pub(super) path: String,
    /// Value of the `authorization` header: `Basic …`
    pub(super) authorization: Option<String>,
}

impl FromStr for Hive {
    type Err = String;

    fn from_str(url: &str) -> Result<Hive, String> {
        const EXPECTED_URL: &str = "give http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT";
        let wrong = |why: &str| format!("{why}; {EXPECTED_URL}");
        let uri: Uri = url.parse().map_err(|error| wrong(&format!("it is not a URL: {error}")))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(wrong(
                    "announcements are sent by plain http, to a proxy on this machine if need be",
                ));
            }
            _ => return Err(wrong("it does not begin with http://")),
        }
        // A query would be sent before the worker's name. hyper drops a fragment: servers never
        // receive it.
        if uri.query().is_some() || url.contains('#') {
            return Err(wrong("'?' and '#' have no meaning here"));
        }
        let whole = uri.authority().map_or("", |authority| authority.as_str());
        let (user, authority) =
            whole.rsplit_once('@').map_or((None, whole), |(user, rest)| (Some(user), rest));
        let host = head::name(authority).ok_or_else(|| wrong("it has no host"))?.to_owned();
        let port = uri.port_u16().unwrap_or(80);
        if port == 0 {
            return Err(wrong("port 0 is invalid"));
        }
        let authorization =
            user.map(|user| format!("Basic {}", base64::encode(&decoded(user, false))));
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Hive { authority: authority.to_owned(), host, port, path, authorization })
    }
}

impl fmt::Display for Hive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}
