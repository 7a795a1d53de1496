//! Names of artefacts: `oci://HOST[:PORT]/REPOSITORY[:TAG]`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The scheme of a name.
pub const SCHEME: &str = "oci://";
/// The most characters of a repository, by the OCI distribution specification.
const MAX_CHARS: usize = 255;

/// An artefact in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artefact {
    pub(super) host: String,
    pub(super) repository: String,
    pub(super) tag: String,
}

/// A text that names no artefact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' names no artefact of a registry: {why}; give oci://HOST/REPOSITORY:TAG")]
pub struct BadArtefact {
    text: String,
    why: &'static str,
}

impl Artefact {
    /// Scheme, host name and port of the registry. Plain HTTP is used for this machine only.
    pub(super) fn base(&self) -> String {
        let scheme = if is_loopback(&self.host) { "http" } else { "https" };
        format!("{scheme}://{}", self.host)
    }
}

/// Whether a host, with or without a port, is this machine.
pub fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

impl FromStr for Artefact {
    type Err = BadArtefact;

    fn from_str(text: &str) -> Result<Artefact, BadArtefact> {
        let bad = |why| BadArtefact { text: crate::error::shown(text), why };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| bad("it does not begin with oci://"))?;
        let (host, path) = rest.split_once('/').ok_or_else(|| bad("it has no repository"))?;
        let (repository, tag) = path.split_once(':').unwrap_or((path, "latest"));
        let of = |allowed: &str, text: &str| {
            text.bytes().all(|b| b.is_ascii_alphanumeric() || allowed.as_bytes().contains(&b))
        };
        let authority: Option<ureq::http::uri::Authority> = host.parse().ok();
        let named = |a: &ureq::http::uri::Authority| {
            !a.host().is_empty() && (a.port_u16().is_some() || a.as_str() == a.host())
        };
        if !of("-.:[]", host) || !authority.as_ref().is_some_and(named) {
            return Err(bad("its host is not a valid host name"));
        }
        let part = |part: &str| {
            of("-._", part)
                && !part.bytes().any(|b| b.is_ascii_uppercase())
                && part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part.ends_with(|c: char| c.is_ascii_alphanumeric())
        };
        if repository.len() > MAX_CHARS || !repository.split('/').all(part) {
            return Err(bad(
                "a repository has lower-case letters, digits, and - . _ / between them",
            ));
        }
        if tag.is_empty() || tag.len() > 128 || !of("-._", tag) || tag.starts_with(['-', '.']) {
            return Err(bad("a tag has at most 128 letters, digits and - . _"));
        }
        let [host, repository, tag] = [host, repository, tag].map(str::to_owned);
        Ok(Artefact { host, repository, tag })
    }
}

impl fmt::Display for Artefact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Artefact { host, repository, tag } = self;
        write!(f, "{SCHEME}{host}/{repository}:{tag}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_bad_ones_are_refused() {
        for (text, shown, base) in [
            ("oci://r.example/a/b", "oci://r.example/a/b:latest", "https://r.example"),
            ("oci://localhost:5000/k:v1.2", "oci://localhost:5000/k:v1.2", "http://localhost:5000"),
            ("oci://127.9.0.1/k:A_b", "oci://127.9.0.1/k:A_b", "http://127.9.0.1"),
            ("oci://[::1]:80/k", "oci://[::1]:80/k:latest", "http://[::1]:80"),
            ("oci://10.0.0.1:5000/k", "oci://10.0.0.1:5000/k:latest", "https://10.0.0.1:5000"),
            (
                "oci://localhost.example/k",
                "oci://localhost.example/k:latest",
                "https://localhost.example",
            ),
        ] {
            let name: Artefact = text.parse().unwrap();
            assert_eq!((name.to_string().as_str(), name.base().as_str()), (shown, base));
        }
        for text in [
            "",
            "oci:/h/r",
            "oci://h",
            "oci:///r",
            "oci://h/",
            "oci://h/R",
            "oci://h/a//b",
            "oci://h/../b",
            "oci://h/a:",
            "oci://h/a:b/c",
            "oci://h/a:-x",
            "oci://u@h/a",
            "oci://h/a b",
            "oci://h/a?b",
            "https://h/a",
            "oci://h:x/a",
        ] {
            assert!(text.parse::<Artefact>().is_err(), "{text}");
        }
        assert!(format!("oci://h/{}", "a".repeat(300)).parse::<Artefact>().is_err());
    }
}
