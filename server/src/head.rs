//! Checks the head of a request: contradictions in it, and the server name that it addresses. Two
//! servers that read a contradictory head differently see different requests (request smuggling).

use crate::refusal::Refusal;
use axum::http::uri::Uri;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Version, header};
use std::net::Ipv6Addr;

/// Parses the raw bytes of a head. If a head has two contradictory lengths, hyper keeps one without
/// an error.
#[derive(Debug, Default)]
pub struct RawHead {
    bytes: Vec<u8>,
    /// Bytes of the body that remain before the next head.
    body: u64,
}

impl RawHead {
    /// Processes received bytes.
    pub fn took(&mut self, bytes: &[u8]) {
        let of_body = usize::try_from(self.body).unwrap_or(usize::MAX).min(bytes.len());
        if self.missing().is_some() {
            self.body -= of_body as u64;
        }
        self.bytes.extend_from_slice(bytes.get(of_body..).unwrap_or_default());
    }

    /// Ends a head. Its body has this many bytes, or `None` if the length is unknown. Returns
    /// whether the head had a length field.
    pub fn ended(&mut self, body: Option<u64>) -> bool {
        let bytes = std::mem::take(&mut self.bytes);
        let (mut begun, mut length, mut rest) = (false, false, bytes.as_slice());
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            match line.strip_suffix(b"\r").unwrap_or(line) {
                b"" if begun => break,
                b"" => {}
                line => {
                    begun = true;
                    let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
                    length |= name.trim_ascii().eq_ignore_ascii_case(b"content-length");
                }
            }
        }
        self.body = body.unwrap_or(u64::MAX);
        self.took(rest);
        length
    }

    /// Whether a part of a head was received.
    pub fn begun(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Bytes of the body that are missing. `None` if unknown.
    pub fn missing(&self) -> Option<u64> {
        Some(self.body).filter(|body| *body != u64::MAX)
    }
}

/// Marks a request with a length field and a chunked body.
#[derive(Debug, Clone, Copy)]
pub struct TwoLengths;

/// Checks that a head is unambiguous.
///
/// # Errors
/// 400: the head is contradictory. 501: its transfer coding is not supported.
pub fn check<B>(request: &Request<B>) -> Result<(), Refusal> {
    if request.extensions().get::<TwoLengths>().is_some() {
        return Err(Refusal::bad(
            "Content-Length and Transfer-Encoding contradict each other: send one of them",
        ));
    }
    let headers = request.headers();
    let chunked =
        |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    if !codings.next().is_none_or(chunked) || codings.next().is_some() {
        let why = "Transfer-Encoding: only 'chunked' is supported: \
            send the body without other encodings";
        return Err(Refusal::encoded(StatusCode::NOT_IMPLEMENTED, why));
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let (host, more) = (hosts.next(), hosts.next());
    if more.is_some() {
        return Err(Refusal::bad("the request has two Host headers: send one"));
    }
    let one = |host: &HeaderValue| host.to_str().ok().and_then(name).is_some();
    match host {
        None if request.version() >= Version::HTTP_11 => {
            Err(Refusal::bad("the request has no Host header: send one"))
        }
        Some(host) if !one(host) => Err(Refusal::bad(format!(
            "Host: {host:?} is invalid: give NAME or NAME:PORT, IPv6 as [ADDRESS]:PORT"
        ))),
        _ => match request.uri().authority() {
            Some(target) if name(target.as_str()).is_none() => {
                Err(Refusal::bad("the request's target has no server name: send only the path"))
            }
            _ => Ok(()),
        },
    }
}

/// Checks that a body has no content encoding.
///
/// # Errors
/// 415: it is compressed.
pub fn plain_body(headers: &HeaderMap) -> Result<(), Refusal> {
    let plain =
        |value: &&HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    match headers.get_all(header::CONTENT_ENCODING).iter().find(|value| !plain(value)) {
        None => Ok(()),
        Some(coding) => {
            let why = format!(
                "Content-Encoding: {coding:?}: \
                 a compressed body is not supported: send it without compression"
            );
            Err(Refusal::encoded(StatusCode::UNSUPPORTED_MEDIA_TYPE, why))
        }
    }
}

/// The server that a request addresses, as `NAME:PORT`: from the request target, or from `Host` if
/// the target has none.
pub fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> &'a str {
    let named = || headers.get(header::HOST).and_then(|host| host.to_str().ok());
    uri.authority().map(|target| target.as_str()).or_else(named).unwrap_or_default()
}

/// The host name in a `Host` value, without the port and without brackets of an IPv6 address.
pub fn name(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']')?;
            name.parse::<Ipv6Addr>().ok()?;
            (name, port)
        }
        None => {
            let (name, port) = host.split_at_checked(host.find(':').unwrap_or(host.len()))?;
            let good =
                |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(&byte);
            if name.is_empty() || !name.bytes().all(good) {
                return None;
            }
            (name, port)
        }
    };
    let good = match port.strip_prefix(':') {
        None => port.is_empty(),
        Some(digits) => {
            digits.is_empty()
                || digits.bytes().all(|b| b.is_ascii_digit()) && digits.parse::<u16>().is_ok()
        }
    };
    good.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::{RawHead, name};

    #[test]
    fn host_header_is_parsed_strictly() {
        for (host, is) in [
            ("localhost", Some("localhost")),
            ("localhost:8080", Some("localhost")),
            ("localhost:", Some("localhost")),
            ("my_box.example:1", Some("my_box.example")),
            ("[::1]", Some("::1")),
            ("[::1]:65535", Some("::1")),
            ("[::1]evil", None),
            ("[::1]:80evil", None),
            ("[::1", None),
            ("[evil]", None),
            ("::1", None),
            ("localhost:65536", None),
            ("localhost:+80", None),
            ("localhost:80:80", None),
            ("me@localhost", None),
            ("local host", None),
            ("localhost/x", None),
            (":80", None),
            ("", None),
        ] {
            assert_eq!(name(host), is, "{host}");
        }
    }

    #[test]
    fn content_length_is_found_at_any_read_split() {
        let all = b"\r\nPOST / HTTP/1.1\r\nHost: a\r\ncontent-LENGTH: \
            21\r\n\r\nx\ncontent-length: 1\n\nGET / HTTP/1.1\nHost: a\n\n";
        for at in 0..all.len() {
            let mut raw = RawHead::default();
            let (one, two) = all.split_at(at);
            raw.took(one);
            // hyper passes a head on when it is complete.
            if at < 53 {
                raw.took(two);
            }
            assert!(raw.ended(Some(21)), "{at}");
            if at >= 53 {
                raw.took(two);
            }
            assert_eq!(raw.missing(), Some(0));
            assert!(raw.begun() && !raw.ended(Some(0)) && !raw.begun(), "{at}");
        }
        let mut raw = RawHead::default();
        raw.took(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
        assert!(!raw.ended(None) && raw.missing().is_none() && !raw.begun());
    }
}
