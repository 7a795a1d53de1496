//! Access control: API keys, and the origins of web pages.

use crate::head;
use crate::refusal::Refusal;
use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// An accepted key, stored as its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

/// The accepted keys. Without keys, every request is accepted.
#[derive(Debug, Default, Clone)]
pub struct Keys(Vec<Entry>);

/// An accepted key.
#[derive(Debug, Clone)]
struct Entry {
    digest: [u8; 32],
    /// The adapters that it may use; `None`: all.
    adapters: Option<Arc<[String]>>,
    /// Whether it may load and unload adapters.
    loads_adapters: bool,
    /// Its share of the running requests; at least 1.
    weight: u32,
}

impl Keys {
    /// Reads one key per line. Empty lines and lines that begin with `#` are skipped. After a key,
    /// `adapters=NAME,NAME` lists the only adapters that it may use; `adapters=` means none.
    /// `load-adapters=yes` allows it to load and unload adapters. `weight=N` (1 to 1000; 1) is its
    /// share of the running requests while others wait.
    ///
    /// # Errors
    /// The number of a line whose weight is not valid, and the reason. The key is not printed.
    pub fn parse(text: &str) -> Result<Keys, String> {
        // Some editors write a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = (1..).zip(text.lines().map(str::trim));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let entry = |(number, line): (usize, &str)| {
            let (mut key, mut adapters, mut loads_adapters, mut weight) = (line, None, false, 1);
            while let Some((before, rule)) = key.rsplit_once(char::is_whitespace) {
                match rule.split_once('=') {
                    Some(("adapters", names)) => {
                        let names = names.split(',').filter(|name| !name.is_empty());
                        adapters = Some(names.map(str::to_owned).collect());
                    }
                    Some(("load-adapters", may)) => loads_adapters = may == "yes",
                    Some(("weight", given)) => match given.parse() {
                        Ok(n @ 1..=1000) => weight = n,
                        _ => return Err(format!("line {number}: weight must be 1 to 1000")),
                    },
                    _ => break,
                }
                key = before.trim_end();
            }
            let digest = Sha256::digest(key.as_bytes()).into();
            Ok(Entry { digest, adapters, loads_adapters, weight })
        };
        lines.map(entry).collect::<Result<_, _>>().map(Keys)
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key in these headers. `None` if the server has no keys. All digests are compared
    /// completely, so that the time does not reveal the position of the first difference.
    ///
    /// # Errors
    /// The headers have no accepted key.
    pub fn check(&self, headers: &HeaderMap) -> Result<Option<Key>, Refusal> {
        if self.is_empty() {
            return Ok(None);
        }
        // Anthropic's clients send `x-api-key`. Some of them also send a bearer token of another
        // service.
        let named = headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii());
        let given = [bearer(headers), named];
        let found = given.into_iter().flatten().find_map(|given| self.find(given));
        found.map(Some).ok_or_else(Refusal::no_key)
    }

    /// The adapters that this key may use; `None`: all.
    pub fn adapters(&self, Key(digest): Key) -> Option<Arc<[String]>> {
        self.0.iter().find(|entry| entry.digest == digest)?.adapters.clone()
    }

    /// Whether this key may load and unload adapters.
    pub fn loads_adapters(&self, Key(digest): Key) -> bool {
        self.0.iter().any(|entry| entry.digest == digest && entry.loads_adapters)
    }

    /// The share of this key's running requests while others wait.
    pub fn weight(&self, Key(digest): Key) -> u32 {
        self.0.iter().find(|entry| entry.digest == digest).map_or(1, |entry| entry.weight)
    }

    /// The accepted key that equals `given`.
    fn find(&self, given: &[u8]) -> Option<Key> {
        let given: [u8; 32] = Sha256::digest(given).into();
        let same =
            |key: &Entry| key.digest.iter().zip(&given).fold(0, |all, (a, b)| all | (a ^ b)) == 0;
        self.0.iter().fold(false, |found, key| found | same(key)).then_some(Key(given))
    }
}

/// The key in an `Authorization: Bearer KEY` header.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let given = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (word, key) = given.split_at_checked(7)?;
    word.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}
/// The web pages and host names that may access a server.
#[derive(Debug, Default, Clone)]
pub struct Origins {
    /// Accepted origins, besides the server's own page.
    pub named: Vec<String>,
    /// The server listens on loopback only. Then other host names that resolve to it are refused
    /// (DNS rebinding).
    pub loopback: bool,
}

impl Origins {
    /// Checks the origin of a request to this host. Browsers send an origin. Requests of programs
    /// have no origin and are accepted.
    ///
    /// # Errors
    /// The origin or the host name is not accepted.
    pub fn check(&self, host: &str, headers: &HeaderMap) -> Result<(), Refusal> {
        if self.loopback && !host.is_empty() && !is_loopback_name(host) {
            let why = "this server accepts only the host names localhost and 127.0.0.1; \
                       to serve other machines, use --host";
            return Err(Refusal::foreign(why));
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or("?");
        let own = origin.split_once("://").is_some_and(|(_, rest)| rest == host);
        if own || self.named.iter().any(|named| named == origin) {
            return Ok(());
        }
        Err(Refusal::foreign(
            "requests from pages of other origins are refused; --cors ORIGIN allows one",
        ))
    }

    /// The value of `access-control-allow-origin`, if the request comes from another page.
    pub fn allowed(&self, headers: &HeaderMap) -> Option<axum::http::HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        self.named.iter().any(|named| named.as_bytes() == origin.as_bytes()).then(|| origin.clone())
    }
}

/// An origin as browsers write it: `https://app.example`, `http://localhost:3000`,
/// `app://obsidian.md`.
///
/// # Errors
/// The string is not an origin.
pub fn origin(text: &str) -> Result<String, String> {
    let wrong = |why: &str| {
        format!("{why}: give an origin as https://app.example or http://localhost:3000")
    };
    if text == "*" {
        return Err(wrong("`*` would allow every web page: list each origin"));
    }
    let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
    let (scheme, rest) = (scheme.to_ascii_lowercase(), rest.to_ascii_lowercase());
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.bytes().all(letter) {
        return Err(wrong("the scheme is invalid"));
    }
    if rest.contains(['/', '?', '#', '@']) {
        return Err(wrong("an origin has no path and no user"));
    }
    // A `*` in a host has no special meaning here, and browsers never send it.
    if rest.contains('*') || rest.ends_with(':') || head::name(&rest).is_none() {
        return Err(wrong("the host is invalid"));
    }
    let usual = match scheme.as_str() {
        "http" => ":80",
        "https" => ":443",
        _ => "",
    };
    let rest =
        if rest.ends_with(']') { rest.as_str() } else { rest.strip_suffix(usual).unwrap_or(&rest) };
    Ok(format!("{scheme}://{rest}"))
}

/// Whether the host is `localhost:8080` or similar.
fn is_loopback_name(host: &str) -> bool {
    let Some(name) = head::name(host) else { return false };
    let address = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    address
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::{Keys, Origins, origin};
    use axum::http::{HeaderMap, HeaderName, HeaderValue};

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        all.iter().map(pair).collect()
    }

    #[test]
    fn only_listed_keys_are_accepted() {
        let keys = Keys::parse("# people\nalpha\n\n beta \n").unwrap();
        let check = |value: &str| keys.check(&headers(&[("authorization", value)])).is_ok();
        assert!(check("Bearer alpha") && check("bearer beta"));
        for wrong in [
            "Bearer alph",
            "Bearer alphaa",
            "Bearer ",
            "Bearer",
            "alpha",
            "Basic alpha",
            "Bearer # people",
        ] {
            assert!(!check(wrong), "{wrong}");
        }
        assert!(keys.check(&HeaderMap::new()).is_err());
        let check = |all: &[(&'static str, &str)]| keys.check(&headers(all)).is_ok();
        assert!(check(&[("x-api-key", "alpha")]));
        assert!(check(&[("authorization", "Bearer other"), ("x-api-key", "beta")]));
        assert!(!check(&[("x-api-key", "other")]) && !check(&[("x-api-key", "")]));
        let keys =
            Keys::parse("gamma adapters=one,two\ndelta  adapters=\nepsilon\nodd key\n").unwrap();
        let of = |name: &str| {
            let bearer = format!("Bearer {name}");
            let key = keys.check(&headers(&[("authorization", &bearer)])).unwrap().unwrap();
            keys.adapters(key).map(|names| names.to_vec())
        };
        assert_eq!(of("gamma"), Some(vec!["one".to_owned(), "two".to_owned()]));
        assert_eq!((of("delta"), of("epsilon"), of("odd key")), (Some(vec![]), None, None));
        let keys = Keys::parse(
            "a load-adapters=yes weight=4\nb adapters=x load-adapters=yes\nc\nd load-adapters=no",
        )
        .unwrap();
        let loads = |name: &str| {
            let bearer = format!("Bearer {name}");
            let key = keys.check(&headers(&[("authorization", &bearer)])).unwrap().unwrap();
            (keys.loads_adapters(key), keys.adapters(key).is_some())
        };
        let found = ["a", "b", "c", "d"].map(loads);
        assert_eq!(found, [(true, false), (true, true), (false, false), (false, false)]);
        let weight = |name: &str| {
            let bearer = format!("Bearer {name}");
            keys.weight(keys.check(&headers(&[("authorization", &bearer)])).unwrap().unwrap())
        };
        assert_eq!((weight("a"), weight("c")), (4, 1));
        for wrong in ["0", "1001", "-1", "many", ""] {
            let why = Keys::parse(&format!("\n# people\nsecret weight={wrong}")).unwrap_err();
            assert_eq!(why, "line 3: weight must be 1 to 1000");
        }
        assert!(
            Keys::parse("\n# none\n").unwrap().is_empty()
                && Keys::default().check(&HeaderMap::new()).is_ok()
        );
    }

    #[test]
    fn origins_are_normalised_like_browsers() {
        for (text, is) in [
            ("https://app.example", "https://app.example"),
            ("HTTPS://App.Example:443", "https://app.example"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("http://[::1]:80", "http://[::1]"),
            ("http://[::80]", "http://[::80]"),
            ("app://obsidian.md", "app://obsidian.md"),
            ("chrome-extension://abcdef", "chrome-extension://abcdef"),
        ] {
            assert_eq!(origin(text).as_deref(), Ok(is), "{text}");
        }
        for wrong in [
            "nonsense",
            "*",
            "null",
            "",
            "https://",
            "https://app.example/",
            "https://app.example/x",
            "https://*.example",
            "https://me@app.example",
            "app.example",
            "app.example:443",
            "://app",
            "https://app.example:port",
            "https://app.example:",
            "https://a b",
            "http s://a",
            "https://app.example,https://b.example",
            "https://app.example:99999",
            "https://a?b",
        ] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn origins_and_host_names_are_checked() {
        let origins = Origins { named: vec!["https://good.example".into()], loopback: true };
        let check =
            |host: &str, all: &[(&'static str, &str)]| origins.check(host, &headers(all)).is_ok();
        assert!(check("127.0.0.1:8080", &[]) && check("localhost", &[]) && check("[::1]:80", &[]));
        assert!(check("localhost:8080", &[("origin", "http://localhost:8080")]));
        assert!(check("localhost:8080", &[("origin", "https://good.example")]));
        assert!(!check("localhost:8080", &[("origin", "http://evil.example")]));
        assert!(!check("localhost:8080", &[("origin", "http://localhost:9")]));
        assert!(!check("localhost:8080", &[("origin", "null")]));
        assert!(!check("evil.example:8080", &[]), "rebinding");
        assert!(!check("127.0.0.1.evil.example", &[]) && !check("[::1]evil", &[]));
        let open = Origins { named: vec![], loopback: false };
        assert!(open.check("box.example", &HeaderMap::new()).is_ok());
    }
}
