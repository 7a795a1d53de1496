//! HTTP requests. The token is never sent to another host on redirects. Failures become typed
//! errors.

use crate::error::{Error, Fault, bytes, shown};
use crate::rate_meter::MinRate;
use crate::settings::Settings;
use std::time::Duration;
use ureq::http::{Response, StatusCode, Uri, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, Proxy};

/// Maximum tries of a request. The count starts again when enough bytes were received.
pub(crate) const TRIES: u32 = 5;
/// The longest pause that a host may request. If it requests more, the command ends with an error.
const MAX_PAUSE: Duration = Duration::from_secs(60);
const MAX_HOPS: usize = 10;

/// The client.
pub(crate) struct Http {
    agent: Agent,
    endpoint: Uri,
    bearer: Option<String>,
    pause: Duration,
    /// The minimum rate.
    pub pace: MinRate,
}

/// An answer, the host that sent it, and headers that the hub sent before redirects.
pub(crate) struct HttpResponse {
    pub response: Response<Body>,
    /// Scheme, host name and port of the host that answered.
    pub host: String,
    /// The commit from the first answer that has one: from the hub, not from the storage host.
    pub commit: Option<String>,
    pub etag: Option<String>,
    pub size: Option<u64>,
}

impl Http {
    pub fn new(settings: &Settings) -> Result<Http, Error> {
        let endpoint: Uri = settings.endpoint.parse().map_err(|e| Error::Setting {
            variable: "HF_ENDPOINT",
            why: format!(
                "is '{}', which is not a URL ({e}): unset it, or set it to a hub's URL",
                settings.endpoint
            ),
        })?;
        let agent = agent(settings)?;
        let pace = MinRate { rate: settings.min_rate, window: settings.window };
        Ok(Http {
            agent,
            endpoint,
            bearer: settings.token.as_ref().map(|t| t.bearer()),
            pause: settings.pause,
            pace,
        })
    }

    /// Scheme, host name and port of the hub, for errors.
    pub fn host(&self) -> String {
        host(&self.endpoint)
    }

    /// Whether a token is set.
    pub fn has_token(&self) -> bool {
        self.bearer.is_some()
    }

    /// A URL below the endpoint. Parts that came from a user or a host are percent-encoded. The
    /// path of a file may contain folders.
    pub fn url(&self, parts: &[&str], file: &str) -> String {
        let mut url = self.endpoint.to_string().trim_end_matches('/').to_owned();
        for part in parts.iter().copied().chain(file.split('/').filter(|p| !p.is_empty())) {
            url.push('/');
            url.push_str(&encoded(part));
        }
        url
    }

    /// Sends a request and follows redirects. With `head` it does not follow redirects to the
    /// storage host.
    pub fn ask(&self, url: &str, head: bool, from: u64) -> Result<HttpResponse, Fault> {
        let (mut commit, mut etag, mut size) = (None, None, None);
        let mut at: Uri = url.parse().map_err(|e| strange(url, format!("not a URL: {e}")))?;
        for _ in 0..MAX_HOPS {
            let response = self.once(&at, head, from)?;
            let said =
                |name: &str| Some(response.headers().get(name)?.to_str().ok()?.trim().to_owned());
            commit = commit.or_else(|| said("x-repo-commit"));
            etag = etag.or_else(|| said("x-linked-etag"));
            size = size.or_else(|| said("x-linked-size")?.parse().ok());
            let next = said("location").filter(|_| response.status().is_redirection());
            let leaves = |to: &Uri| head && etag.is_some() && !same_host(to, &at);
            match next.map(|to| join(&at, &to)).transpose()? {
                Some(to)
                    if at.scheme_str() == Some("https") && to.scheme_str() != Some("https") =>
                {
                    return Err(strange(
                        &address(&at),
                        format!("it leads to {}, a connection without encryption", host(&to)),
                    )
                    .into());
                }
                Some(to) if !leaves(&to) => at = to,
                _ => {
                    if response.status().is_success() {
                        etag = etag.or_else(|| said("etag"));
                        size =
                            size.or_else(|| said("content-length")?.parse().ok().filter(|_| head));
                    }
                    return Ok(HttpResponse { host: host(&at), commit, etag, size, response });
                }
            }
        }
        Err(strange(url, format!("{MAX_HOPS} redirects")).into())
    }

    fn once(&self, at: &Uri, head: bool, from: u64) -> Result<Response<Body>, Fault> {
        let mut request = if head { self.agent.head(at) } else { self.agent.get(at) };
        if from > 0 {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        if let Some(bearer) = self.bearer.as_ref().filter(|_| same_host(at, &self.endpoint)) {
            request = request.header(header::AUTHORIZATION, bearer);
        }
        // The bytes of the file, without compression by a proxy.
        request
            .header(header::ACCEPT_ENCODING, "identity")
            .call()
            .map_err(|e| unreachable_host(at, e))
    }

    /// The error for an answer with an error status.
    pub fn refused(&self, answer: &HttpResponse, url: &str, repo: &str, revision: &str) -> Fault {
        let (status, host) = (answer.response.status(), self.host());
        let said = |name: &str| answer.response.headers().get(name).and_then(|v| v.to_str().ok());
        let (own, token) = (answer.host == host, self.has_token());
        let (repo, revision) = (repo.to_owned(), revision.to_owned());
        let error = match (said("x-error-code").unwrap_or_default(), status.as_u16()) {
            ("GatedRepo", _) => {
                let token =
                    if token { ", with the account of this token" } else { ", then set HF_TOKEN" };
                Error::Gated { host, repo, token }
            }
            ("RevisionNotFound", _) => Error::NoRevision { host, repo, revision },
            ("RepoNotFound", _) | (_, 401 | 404)
                if own && !(token && status.as_u16() == 401 && said("x-error-code").is_none()) =>
            {
                Error::NoRepository {
                    host,
                    repo,
                    token: if token { "" } else { ", or set HF_TOKEN" },
                }
            }
            (_, 401) if own => Error::Token { host },
            (_, 403) if own => {
                let token = if token {
                    ", with the account of this token, and allow the token to read it"
                } else {
                    ", then set HF_TOKEN"
                };
                Error::Gated { host, repo, token }
            }
            (_, code) => {
                let after = said("retry-after")
                    .and_then(|s| s.trim().parse().ok())
                    .map(Duration::from_secs);
                return status_fault(status, code, url, answer.host.clone(), after, token);
            }
        };
        Fault::Last(error)
    }

    /// The error for a host that sends `rate` bytes per second, which is below the minimum.
    pub fn slow(&self, file: &str, host: &str, rate: u64) -> Error {
        let (file, host, seconds) = (shown(file), host.to_owned(), self.pace.window.as_secs());
        Error::Slow { file, host, rate: bytes(rate), least: bytes(self.pace.rate), seconds }
    }

    /// Repeats a request while a retry may help. `came` is the number of bytes received so far.
    /// When the minimum bytes of a full window were received since the last restart, the count of
    /// tries starts again. Without this minimum, a host that closes after every byte would be tried
    /// endlessly.
    pub fn retry<T>(
        &self,
        told: &dyn Fn(&str, Duration),
        came: &dyn Fn() -> u64,
        mut work: impl FnMut() -> Result<T, Fault>,
    ) -> Result<T, Error> {
        let (mut tries, mut before) = (0, came());
        loop {
            let (why, after, last) = match work() {
                Ok(done) => return Ok(done),
                Err(Fault::Last(error)) => return Err(error),
                Err(Fault::Again { why, after, last }) => (why, after, last),
            };
            if came() >= before + self.pace.of_window().max(1) {
                (tries, before) = (0, came());
            }
            tries += 1;
            if tries >= TRIES || after.is_some_and(|wait| wait > MAX_PAUSE) {
                return Err(last(tries));
            }
            let pause = after.unwrap_or(self.pause * 2u32.pow(tries - 1));
            told(&why, pause);
            std::thread::sleep(pause);
        }
    }
}

/// The client of these settings. It follows no redirects.
pub(crate) fn agent(settings: &Settings) -> Result<Agent, Error> {
    let mut tls = TlsConfig::builder();
    if let Some(file) = &settings.certificates {
        let bad = |why: String| Error::Setting {
            variable: "SSL_CERT_FILE",
            why: format!("names {}, {why}: unset it, or name a PEM file", file.display()),
        };
        let pem = std::fs::read(file).map_err(|e| bad(format!("which cannot be read ({e})")))?;
        let read: Vec<_> = parse_pem(&pem).filter_map(Result::ok).collect();
        let certificates: Vec<_> = read
            .into_iter()
            .filter_map(|item| if let PemItem::Certificate(c) = item { Some(c) } else { None })
            .collect();
        if certificates.is_empty() {
            return Err(bad("which holds no certificate".to_owned()));
        }
        tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
    }
    Ok(Agent::config_builder()
        .tls_config(tls.build())
        .proxy(if settings.proxies { Proxy::try_from_env() } else { None })
        .user_agent(concat!("kjit/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_connect(Some(settings.patience))
        .timeout_recv_response(Some(settings.patience))
        .timeout_per_read(Some(settings.patience))
        .timeout_per_write(Some(settings.patience))
        .build()
        .new_agent())
}

/// Decides for which HTTP statuses another try may help.
fn status_fault(
    status: StatusCode,
    code: u16,
    url: &str,
    host: String,
    after: Option<Duration>,
    token: bool,
) -> Fault {
    let (why, url) = (status.to_string(), shown(url));
    match code {
        429 => {
            let wait = after.map_or(String::new(), |s| format!(", for {} s", s.as_secs()));
            let token = if token { "" } else { ", or set HF_TOKEN for a higher limit" };
            Fault::Again {
                why,
                after,
                last: Box::new(move |_| Error::TooMany { host, wait, token }),
            }
        }
        408 | 500..=599 => {
            let status = why.clone();
            let last = move |tries| Error::Status {
                url,
                status,
                tries: format!(", {tries} times in a row"),
            };
            Fault::Again { why, after, last: Box::new(last) }
        }
        _ => Fault::Last(Error::Status { url, status: why, tries: String::new() }),
    }
}

/// The error for a host that did not answer.
fn unreachable_host(at: &Uri, error: ureq::Error) -> Fault {
    let host = host(at);
    let why = match &error {
        ureq::Error::Io(e) => e.to_string(),
        ureq::Error::HostNotFound => "the host name does not exist".to_owned(),
        ureq::Error::Timeout(_) => "it does not answer".to_owned(),
        other => shown(&other.to_string()),
    };
    let about_trust = |text: &str| text.contains("certificate") || text.contains("UnknownIssuer");
    if matches!(error, ureq::Error::Tls(_) | ureq::Error::Rustls(_)) || about_trust(&why) {
        return Fault::Last(Error::Certificate { host, why });
    }
    let said = why.clone();
    Fault::Again {
        why,
        after: None,
        last: Box::new(move |tries| Error::Unreachable { host, why: said, tries }),
    }
}

pub(crate) fn strange(url: &str, why: String) -> Error {
    Error::Strange { url: shown(url), why: shown(&why) }
}

/// Scheme, host name and port of a URL.
pub(crate) fn host(at: &Uri) -> String {
    let name = at.authority().map_or("", |a| a.as_str().rsplit('@').next().unwrap_or_default());
    format!("{}://{name}", at.scheme_str().unwrap_or("http"))
}

/// The URL without its query, which may contain a signature.
fn address(at: &Uri) -> String {
    format!("{}{}", host(at), at.path())
}

pub(crate) fn same_host(a: &Uri, b: &Uri) -> bool {
    let port =
        |u: &Uri| u.port_u16().unwrap_or(if u.scheme_str() == Some("https") { 443 } else { 80 });
    let name = |u: &Uri| u.host().unwrap_or_default().to_ascii_lowercase();
    (a.scheme_str(), name(a), port(a)) == (b.scheme_str(), name(b), port(b))
}

/// The target of a redirect.
pub(crate) fn join(at: &Uri, to: &str) -> Result<Uri, Error> {
    let whole = match to {
        _ if to.starts_with("http://") || to.starts_with("https://") => to.to_owned(),
        _ if to.starts_with("//") => format!("{}:{to}", at.scheme_str().unwrap_or("https")),
        _ if to.starts_with('/') => format!("{}{to}", host(at)),
        _ => format!(
            "{}{}/{to}",
            host(at),
            at.path().rsplit_once('/').map_or("", |(folder, _)| folder)
        ),
    };
    whole.parse().map_err(|e| strange(&address(at), format!("it leads to an invalid address: {e}")))
}

/// Percent-encodes all characters that a path component must not contain unencoded.
pub(crate) fn encoded(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_resolve_to_expected_addresses() {
        let at: Uri = "https://hub.example/a/b/resolve/main/x.gguf?x=1".parse().unwrap();
        for (to, leads) in [
            ("https://cdn.example:8443/y?sig=a%2Fb", "https://cdn.example:8443/y?sig=a%2Fb"),
            ("//cdn.example/y", "https://cdn.example/y"),
            ("/new/name", "https://hub.example/new/name"),
            ("z", "https://hub.example/a/b/resolve/main/z"),
        ] {
            assert_eq!(join(&at, to).unwrap().to_string(), leads);
        }
        assert!(join(&at, "https://a b/").is_err());
    }

    #[test]
    fn host_comparison_includes_port_and_scheme() {
        let uri = |t: &str| t.parse::<Uri>().unwrap();
        assert!(same_host(&uri("https://A.example/x"), &uri("https://a.example:443/y")));
        for other in [
            "http://a.example/",
            "https://a.example:444/",
            "https://b.example/",
            "https://a.example.evil/",
        ] {
            assert!(!same_host(&uri("https://a.example/"), &uri(other)), "{other}");
        }
        assert_eq!(host(&uri("https://me:secret@a.example/x")), "https://a.example");
    }

    #[test]
    fn file_names_are_percent_encoded() {
        let http = Http::new(&Settings::new("http://h:1/base/", "/tmp")).unwrap();
        let url = http.url(&["a", "refs/pr/1"], "b c%/ü#?.gguf");
        assert_eq!(url, "http://h:1/base/a/refs%2Fpr%2F1/b%20c%25/%C3%BC%23%3F.gguf");
    }
}
