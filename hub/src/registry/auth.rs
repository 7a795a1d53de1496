//! Authorisation at a registry: none, a name with a password, or the token that the registry's
//! token service gives for them.

use std::env;
use std::fmt;

/// A name and a password. They are never printed.
#[derive(Clone)]
pub struct Login {
    name: String,
    password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({})", self.name)
    }
}

impl Login {
    /// A login.
    pub fn new(name: impl Into<String>, password: impl Into<String>) -> Login {
        Login { name: name.into(), password: password.into() }
    }

    /// The login of `KJIT_REGISTRY_USER` and `KJIT_REGISTRY_PASSWORD`. `None` if neither is set.
    ///
    /// # Errors
    /// Only one of them is set, as text.
    pub fn from_env() -> Result<Option<Login>, String> {
        let [name, password] = ["KJIT_REGISTRY_USER", "KJIT_REGISTRY_PASSWORD"]
            .map(|name| env::var(name).ok().filter(|text| !text.is_empty()));
        match (name, password) {
            (Some(name), Some(password)) => Ok(Some(Login { name, password })),
            (None, None) => Ok(None),
            _ => Err("KJIT_REGISTRY_USER and KJIT_REGISTRY_PASSWORD must both be set and UTF-8"
                .to_owned()),
        }
    }

    pub(super) fn basic(&self) -> String {
        format!("Basic {}", base64(format!("{}:{}", self.name, self.password).as_bytes()))
    }
}

/// Standard base64 with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let word =
            (0..3).fold(0u32, |word, i| word << 8 | three.get(i).copied().map_or(0, u32::from));
        for i in 0..4u32 {
            let digit = DIGITS.get((word >> (18 - 6 * i) & 63) as usize).copied();
            out.push(if i as usize <= three.len() { digit.map_or('=', char::from) } else { '=' });
        }
    }
    out
}

/// The challenge of a token service: `Bearer realm="…",service="…",scope="…"`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    /// The service's address.
    pub realm: String,
    /// Its parameters.
    pub parameters: Vec<(&'static str, String)>,
}

impl Challenge {
    /// Reads a `WWW-Authenticate` header. `None` if it requests something else.
    pub fn parse(header: &str) -> Option<Challenge> {
        let (kind, rest) = header.trim().split_once(' ')?;
        if !kind.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let value = |wanted: &str| {
            let mut rest = rest;
            loop {
                let (name, after) = rest.split_once('=')?;
                let quoted = after.trim_start().strip_prefix('"')?;
                let (value, more) = quoted.split_once('"')?;
                if name.trim_matches([',', ' ']).eq_ignore_ascii_case(wanted) {
                    return Some(value.to_owned());
                }
                rest = more;
            }
        };
        let parameters = ["service", "scope"].into_iter();
        let parameters = parameters.filter_map(|name| Some((name, value(name)?))).collect();
        Some(Challenge { realm: value("realm")?, parameters })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_encoded_and_not_printed() {
        for (text, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("\u{ff}~~", "w79+fg=="),
        ] {
            assert_eq!(base64(text.as_bytes()), coded);
        }
        let login = Login::new("Aladdin", "open sesame");
        assert_eq!(login.basic(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert!(!format!("{login:?}").contains("sesame"));
    }

    #[test]
    fn challenges_are_read_in_any_order() {
        let scope = "repository:a/b:pull,push";
        let text =
            format!(r#"Bearer realm="https://t.example/token", scope="{scope}",service="r""#);
        let found = Challenge::parse(&text).unwrap();
        assert_eq!(found.realm, "https://t.example/token");
        assert_eq!(found.parameters, [("service", "r".to_owned()), ("scope", scope.to_owned())]);
        for text in ["", "Basic realm=\"x\"", "Bearer", "Bearer realm=x", "Bearer service=\"r\""] {
            assert_eq!(Challenge::parse(text), None, "{text}");
        }
    }
}
