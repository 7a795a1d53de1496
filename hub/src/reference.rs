//! References: `hf:org/repo`, with a file and a revision.

use std::fmt;
use std::str::FromStr;

/// A model on the hub: `hf:ORG/REPO[@REVISION][:QUANT or file]`, or `hf:ORG/REPO/FILE`.
/// `hf.co/ORG/REPO`, `huggingface.co/ORG/REPO` and the URL of a repository or file on the hub's web
/// pages are accepted too.
///
/// ```
/// use kjit_hub::{Pick, Reference};
///
/// let r: Reference = "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M".parse()?;
/// assert_eq!((r.repo(), r.pick()), ("bartowski/Llama-3.2-1B-Instruct-GGUF", &Pick::Tag("Q4_K_M".into())));
/// # Ok::<(), kjit_hub::BadReference>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    repo: String,
    revision: Option<String>,
    pick: Pick,
}

/// The file of a repository that a reference means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pick {
    /// The only model of the repository. If there are several: the `Q4_K_M` model.
    Default,
    /// The model with this tag in its name, such as `Q4_K_M`.
    Tag(String),
    /// The file with this path inside the repository.
    File(String),
}

/// The error for a string that is not a reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' {why}: write hf:ORG/REPO, hf:ORG/REPO:QUANT or hf:ORG/REPO/FILE.gguf")]
pub struct BadReference {
    text: String,
    why: &'static str,
}

/// The beginning of every reference.
pub const SCHEME: &str = "hf:";

/// The revision of a reference without revision.
pub const MAIN: &str = "main";

impl Reference {
    /// `ORG/REPO`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The branch, tag or commit that the reference names.
    pub fn revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }

    /// The file that the reference means.
    pub fn pick(&self) -> &Pick {
        &self.pick
    }

    /// A reference to another file of the same repository and revision.
    pub(crate) fn with_file(&self, file: &str) -> Reference {
        Reference { pick: Pick::File(file.to_owned()), ..self.clone() }
    }

    /// A reference to a file of a repository. `None` if a name is invalid.
    pub(crate) fn to_file(repo: &str, file: &str) -> Option<Reference> {
        let pick = Pick::File(file.to_owned());
        (is_repo(repo) && is_path(file)).then(|| Reference {
            repo: repo.to_owned(),
            revision: None,
            pick,
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match (&self.pick, &self.revision) {
            (Pick::Default, _) => Ok(()),
            (Pick::File(file), None) => write!(f, "/{file}"),
            (Pick::File(word), Some(_)) | (Pick::Tag(word), _) => write!(f, ":{word}"),
        }
    }
}

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Reference, BadReference> {
        let bad = |why| BadReference { text: text.to_owned(), why };
        let address = address(text);
        let text = address.as_deref().unwrap_or(text);
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| bad("does not begin with hf:"))?;
        let (place, word) =
            rest.split_once(':').map_or((rest, None), |(place, word)| (place, Some(word)));
        let (place, revision) =
            place.split_once('@').map_or((place, None), |(place, rev)| (place, Some(rev)));
        // The third path component and all after it are a file.
        let second = place.match_indices('/').nth(1).map(|(at, _)| at);
        let (repo, file) = match second.and_then(|at| place.split_at_checked(at)) {
            Some((repo, file)) => (repo, file.strip_prefix('/')),
            None => (place, None),
        };
        if !is_repo(repo) {
            return Err(bad("has no repository name"));
        }
        if revision.is_some_and(|r| !is_revision(r)) {
            return Err(bad("has an invalid revision (a file name follows a colon: \
                 hf:ORG/REPO@REVISION:FILE)"));
        }
        let pick = match (file, word) {
            (Some(_), Some(_)) => return Err(bad("has two file names")),
            (None, None) => Pick::Default,
            (Some(file), None) => Pick::File(file.to_owned()),
            (None, Some(word)) if is_gguf(word) => Pick::File(word.to_owned()),
            (None, Some(word)) => Pick::Tag(word.to_owned()),
        };
        match &pick {
            Pick::File(file) if !is_gguf(file) => {
                return Err(bad("names a file that does not end with .gguf"));
            }
            Pick::File(file) if !is_path(file) => {
                return Err(bad("has an invalid file name"));
            }
            Pick::Tag(word) if word.is_empty() || !word.bytes().all(of_name) => {
                return Err(bad("has an invalid quantisation name after the colon"));
            }
            _ => {}
        }
        Ok(Reference { repo: repo.to_owned(), revision: revision.map(str::to_owned), pick })
    }
}

/// Converts a URL of the hub's web pages, such as
/// `https://huggingface.co/ORG/REPO/blob/REVISION/FILE`, into a reference `hf:…`.
fn address(text: &str) -> Option<String> {
    let bare =
        text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    let bare = HOSTS.iter().find_map(|host| bare.strip_prefix(host))?;
    let bare = bare.split(['?', '#']).next()?.trim_end_matches('/');
    let parts: Vec<&str> = bare.splitn(5, '/').collect();
    Some(match parts.as_slice() {
        [org, repo, "tree", revision] => format!("{SCHEME}{org}/{repo}@{revision}"),
        [org, repo, "blob" | "resolve", revision, file] => {
            format!("{SCHEME}{org}/{repo}@{revision}:{file}")
        }
        _ => format!("{SCHEME}{bare}"),
    })
}

/// Whether a string begins like a URL of the hub.
pub fn is_address(text: &str) -> bool {
    address(text).is_some()
}

const HOSTS: [&str; 4] = ["huggingface.co/", "hf.co/", "www.huggingface.co/", "www.hf.co/"];

/// Whether the byte is a letter, a digit or a joining character.
fn of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// Whether this is a valid repository name of the hub. Valid names do not contain `--`. It replaces
/// `/` in folder names, so two repositories never share a folder.
pub(crate) fn is_repo(text: &str) -> bool {
    let part = |p: &str| {
        let edge = |b: Option<&u8>| matches!(b, Some(b'-' | b'.') | None);
        let bytes = p.as_bytes();
        p.len() <= 96 && !edge(bytes.first()) && !edge(bytes.last()) && p.bytes().all(of_name)
    };
    let parts: Vec<&str> = text.split('/').collect();
    parts.len() == 2
        && parts.iter().all(|p| part(p))
        && !text.contains("--")
        && !text.contains("..")
}

/// Whether this is a branch, tag or commit. It becomes a file name below `refs`.
fn is_revision(text: &str) -> bool {
    let part = |p: &str| !p.is_empty() && !p.starts_with('.') && p.bytes().all(of_name);
    text.len() <= 200 && !is_gguf(text) && text.split('/').all(part)
}

/// Whether this is a path that stays inside its folder.
pub(crate) fn is_path(text: &str) -> bool {
    let part = |p: &str| {
        !matches!(p, "" | "." | "..")
            && p.len() <= 255
            && !p.contains(|c: char| c.is_control() || c == '\\')
    };
    text.len() <= 1024 && text.split('/').all(part)
}

pub(crate) fn is_gguf(name: &str) -> bool {
    name.len() > 5
        && name.as_bytes().last_chunk::<5>().is_some_and(|end| end.eq_ignore_ascii_case(b".gguf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_round_trip() {
        let tag = |w: &str| Pick::Tag(w.into());
        let file = |w: &str| Pick::File(w.into());
        for (text, repo, revision, pick, again) in [
            ("hf:a/b", "a/b", None, Pick::Default, "hf:a/b"),
            ("hf:a/b:Q4_K_M", "a/b", None, tag("Q4_K_M"), "hf:a/b:Q4_K_M"),
            ("hf:a/b/x.gguf", "a/b", None, file("x.gguf"), "hf:a/b/x.gguf"),
            ("hf:a/b:x.GGUF", "a/b", None, file("x.GGUF"), "hf:a/b/x.GGUF"),
            ("hf:a/b/c/d e.gguf", "a/b", None, file("c/d e.gguf"), "hf:a/b/c/d e.gguf"),
            ("hf:a/b@v1:q8_0", "a/b", Some("v1"), tag("q8_0"), "hf:a/b@v1:q8_0"),
            (
                "hf:a/b@refs/pr/1:c/x.gguf",
                "a/b",
                Some("refs/pr/1"),
                file("c/x.gguf"),
                "hf:a/b@refs/pr/1:c/x.gguf",
            ),
        ] {
            let read: Reference = text.parse().unwrap();
            assert_eq!(
                (read.repo(), read.revision(), read.pick()),
                (repo, revision, &pick),
                "{text}"
            );
            assert_eq!(read.to_string(), again);
            assert_eq!(again.parse(), Ok(read));
        }
    }

    #[test]
    fn hub_page_addresses_are_references() {
        for (text, again) in [
            ("hf.co/a/b:Q4_0", "hf:a/b:Q4_0"),
            ("huggingface.co/a/b", "hf:a/b"),
            ("https://huggingface.co/a/b/", "hf:a/b"),
            ("https://hf.co/a/b/tree/v1", "hf:a/b@v1"),
            ("https://huggingface.co/a/b/blob/main/c/x.gguf", "hf:a/b@main:c/x.gguf"),
            ("https://huggingface.co/a/b/resolve/main/x.gguf?download=true", "hf:a/b@main:x.gguf"),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), again, "{text}");
        }
        for text in
            ["https://huggingface.co/", "hf.co/a", "hf.co/a/b/blob/main", "https://example.org/a/b"]
        {
            assert!(text.parse::<Reference>().is_err(), "{text}");
        }
    }

    #[test]
    fn unsafe_or_invalid_references_are_refused() {
        for text in [
            "hf:",
            "hf:a",
            "hf:/b",
            "hf:a/",
            "hf:../b",
            "hf:a/..",
            "hf:a--b/c",
            "hf:a/b/",
            "hf:a/b:",
            "hf:a/b/../x.gguf",
            "hf:a/b//x.gguf",
            "hf:a/b:../x.gguf",
            "hf:a/b:/etc/x.gguf",
            "hf:a/b/x.bin",
            "hf:a/b/x.gguf:Q4_0",
            "hf:a/b@:Q4_0",
            "hf:a/b@../x",
            "hf:a/b@v1/x.gguf",
            "hf:a/b:Q4 0",
            "hf:a/b@x/../y",
            "hf:a b/c",
            "hf:a/b/c\n.gguf",
            "hf:a/b/.gguf/x",
            "a/b",
            "hf:a/b/.gguf",
        ] {
            let error = text.parse::<Reference>().expect_err(text).to_string();
            assert!(error.contains("hf:ORG/REPO"), "{error}");
        }
    }
}
