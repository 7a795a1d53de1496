//! The chat page: `/` and the files below `/page/`. All files are in the binary; nothing is loaded
//! from other hosts.

use crate::base64;
use crate::refusal::{Dialect, Refusal};
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::OnceLock;

/// Content security policy: scripts, styles, fonts and pictures are files of this server, requests
/// go to this server, and no text ever becomes HTML or code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the page.
struct File {
    /// Path below `page/`.
    name: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($name:literal)*) => {
        [$(File { name: $name, bytes: include_bytes!(concat!("page/", $name)) }),*]
    };
}

/// The files. A test compares this list with the folder.
static FILES: &[File] = &files! {
    "answer.js"
    "ask.js"
    "base.css"
    "charts.js"
    "chat.css"
    "code.js"
    "composer.js"
    "conversation.js"
    "dom.js"
    "drawer.js"
    "exchange.js"
    "files.js"
    "general.js"
    "icon.svg"
    "icons.js"
    "index.html"
    "keys.js"
    "live.css"
    "live.js"
    "main.js"
    "markdown.js"
    "math.js"
    "morph.js"
    "narrow.css"
    "old.js"
    "panels.css"
    "picker.js"
    "preferences.js"
    "settings.js"
    "sidebar.css"
    "sidebar.js"
    "state.js"
    "status.js"
    "store.js"
    "tabs.js"
    "text.css"
    "theme.js"
    "toast.js"
    "tree.js"
    "vendor/fonts/KaTeX_AMS-Regular.woff2"
    "vendor/fonts/KaTeX_Caligraphic-Bold.woff2"
    "vendor/fonts/KaTeX_Caligraphic-Regular.woff2"
    "vendor/fonts/KaTeX_Fraktur-Bold.woff2"
    "vendor/fonts/KaTeX_Fraktur-Regular.woff2"
    "vendor/fonts/KaTeX_Main-Bold.woff2"
    "vendor/fonts/KaTeX_Main-BoldItalic.woff2"
    "vendor/fonts/KaTeX_Main-Italic.woff2"
    "vendor/fonts/KaTeX_Main-Regular.woff2"
    "vendor/fonts/KaTeX_Math-BoldItalic.woff2"
    "vendor/fonts/KaTeX_Math-Italic.woff2"
    "vendor/fonts/KaTeX_SansSerif-Bold.woff2"
    "vendor/fonts/KaTeX_SansSerif-Italic.woff2"
    "vendor/fonts/KaTeX_SansSerif-Regular.woff2"
    "vendor/fonts/KaTeX_Script-Regular.woff2"
    "vendor/fonts/KaTeX_Size1-Regular.woff2"
    "vendor/fonts/KaTeX_Size2-Regular.woff2"
    "vendor/fonts/KaTeX_Size3-Regular.woff2"
    "vendor/fonts/KaTeX_Size4-Regular.woff2"
    "vendor/fonts/KaTeX_Typewriter-Regular.woff2"
    "vendor/highlight.js"
    "vendor/katex.css"
    "vendor/katex.js"
    "vendor/markdown-it.js"
    "welcome.js"
    "words.js"
    "words/de.js"
    "words/en.js"
    "words/es.js"
    "words/fr.js"
    "words/ja.js"
    "words/zh.js"
};

/// Entity tag of each file: the start of its SHA-256 in quotes.
fn tag(name: &str) -> Option<&'static str> {
    static TAGS: OnceLock<HashMap<&str, String>> = OnceLock::new();
    let tag = |file: &'static File| {
        let digest = base64::encode(&Sha256::digest(file.bytes));
        (file.name, format!("\"{}\"", digest.get(..20).unwrap_or_default()))
    };
    TAGS.get_or_init(|| FILES.iter().map(tag).collect()).get(name).map(String::as_str)
}

impl File {
    fn named(name: &str) -> Option<&'static Self> {
        FILES.iter().find(|file| file.name == name)
    }

    /// Content type for the file extension.
    fn kind(&self) -> &'static str {
        match self.name.rsplit_once('.').map_or("", |(_, end)| end) {
            "html" => "text/html; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            "woff2" => "font/woff2",
            _ => "application/octet-stream",
        }
    }

    /// The file, or 304 if the client already has it.
    fn response(&self, headers: &HeaderMap) -> Response {
        let tag = tag(self.name).unwrap_or_default();
        let is_same = |given: &str| given.trim().trim_start_matches("W/") == tag;
        let had = headers
            .get_all(header::IF_NONE_MATCH)
            .iter()
            .any(|tags| tags.to_str().is_ok_and(|tags| tags.split(',').any(is_same)));
        let mut response = match had {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => ([(header::CONTENT_TYPE, self.kind())], self.bytes).into_response(),
        };
        let headers = response.headers_mut();
        headers.insert(header::ETAG, HeaderValue::from_static(tag));
        for (name, value) in [
            (header::CONTENT_SECURITY_POLICY, POLICY),
            // The browser sends a request each time; for an unchanged file the response has no
            // body.
            (header::CACHE_CONTROL, "no-cache"),
            (header::REFERRER_POLICY, "no-referrer"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// `GET /`.
pub async fn page(headers: HeaderMap) -> Response {
    file(Path("index.html".to_owned()), headers).await
}

/// `GET /page/FILE`.
pub async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match File::named(&name) {
        Some(file) => file.response(&headers),
        None => {
            let path = format!("/page/{name}");
            Refusal::no_route(StatusCode::NOT_FOUND, Method::GET.as_str(), &path)
                .response(Dialect::OpenAi)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FILES, File};
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Collects the files below a folder, with relative paths.
    fn below(folder: &Path, at: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder.join(at)).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{at}{}", entry.file_name().to_str().unwrap());
            match entry.file_type().unwrap().is_dir() {
                true => below(folder, &format!("{name}/"), found),
                false => drop(found.insert(name)),
            }
        }
    }

    fn text(file: &File) -> &str {
        std::str::from_utf8(file.bytes).unwrap()
    }

    #[test]
    fn binary_contains_every_page_file_within_size_limit() {
        let mut found = BTreeSet::new();
        below(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/page")), "", &mut found);
        // Licences are part of THIRD-PARTY.
        found.retain(|name| !name.starts_with("vendor/licences/") && name != "vendor/parts.json");
        let listed: Vec<String> = FILES.iter().map(|file| file.name.to_owned()).collect();
        assert_eq!(listed, found.into_iter().collect::<Vec<_>>());
        let bytes: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(bytes <= 1_500_000, "{bytes} bytes");
        for file in FILES {
            assert_ne!(file.kind(), "application/octet-stream", "{}", file.name);
            assert!(super::tag(file.name).is_some_and(|tag| tag.len() == 22), "{}", file.name);
        }
    }

    #[test]
    fn page_files_reference_only_each_other() {
        for file in FILES.iter().filter(|file| !file.name.ends_with(".woff2")) {
            let own = !file.name.starts_with("vendor/");
            let text = text(file);
            let names = |before: &'static str| text.split(before).skip(1);
            let names = names("from \"./").chain(names("import(\"./")).filter(|_| own);
            for (name, _) in names.filter_map(|part| part.split_once('"')) {
                assert!(File::named(name).is_some(), "{}: {name}", file.name);
            }
            for (at, _) in text.match_indices("http").filter(|_| own) {
                let address: String = text[at..].chars().take(40).collect();
                let namespace = address.starts_with("http://www.w3.org/");
                let elsewhere = address.starts_with("http://") || address.starts_with("https://");
                assert!(namespace || !elsewhere, "{}: {address}", file.name);
            }
            // No text becomes HTML or code.
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
            {
                assert!(!own || !text.contains(word), "{}: {word}", file.name);
            }
            for line in text.lines().filter(|_| own && file.name.ends_with(".js")) {
                assert!(line.chars().count() <= 100, "{}: {line}", file.name);
            }
        }
        let page = text(File::named("index.html").unwrap());
        for (name, _) in page.split("\"page/").skip(1).filter_map(|part| part.split_once('"')) {
            assert!(File::named(name).is_some(), "{name}");
        }
        for (tag, times) in [(" style=", 0), (" on", 0), ("<script", 2), ("<style", 0)] {
            assert_eq!(page.matches(tag).count(), times, "{tag}");
        }
    }
}
