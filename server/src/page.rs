//! The chat page at `/`: one file that loads nothing from other hosts.

use crate::base64;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::sync::OnceLock;

const PAGE: &str = include_str!("page.html");

/// Content security policy: the page may run its own script and style, and send requests to this
/// server.
fn policy() -> &'static str {
    static POLICY: OnceLock<String> = OnceLock::new();
    POLICY.get_or_init(|| {
        let between = |open: &str, close: &str| {
            PAGE.split_once(open)
                .and_then(|(_, rest)| rest.split_once(close))
                .map_or("", |(inside, _)| inside)
        };
        let hash = |text: &str| base64::encode(&Sha256::digest(text.as_bytes()));
        let (script, style) =
            (hash(between("<script>", "</script>")), hash(between("<style>", "</style>")));
        format!(
            "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; \
             connect-src 'self'; \
             img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
    })
}

/// The page.
pub async fn page() -> Response {
    let mut response = ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE).into_response();
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(policy()) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_has_one_script_and_one_style_and_asks_nobody_else() {
        for (tag, times) in [
            ("<script>", 1),
            ("<style>", 1),
            ("<script ", 0),
            ("<link ", 1),
            ("<link rel=\"icon\" href=\"data:,\">", 1),
            (" style=\"", 0),
            (" onclick=", 0),
        ] {
            assert_eq!(super::PAGE.matches(tag).count(), times, "{tag}");
        }
        for (at, _) in super::PAGE.match_indices("http") {
            let address = &super::PAGE[at..(at + 40).min(super::PAGE.len())];
            let namespace = address.starts_with("http://www.w3.org/2000/svg");
            assert!(
                namespace || !address.starts_with("http://") && !address.starts_with("https://"),
                "{address}"
            );
        }
    }
}
