//! What the hub says of a repository and of a file.

use crate::error::{Error, Fault};
use crate::http::{Http, strange};
use serde_json::Value;
use std::time::Duration;

/// The most that is read of a list: ten times the largest repository's.
const LIST_LIMIT: u64 = 64 << 20;

/// A repository at a revision.
pub(crate) struct Listing {
    /// The commit that the revision is.
    pub commit: String,
    /// Paths of all files.
    pub files: Vec<String>,
}

/// A file at a commit.
pub(crate) struct FileMeta {
    pub commit: String,
    /// What the hub calls this content; of large files, their sha256.
    pub etag: String,
    pub bytes: u64,
}

/// Said before each further try.
pub(crate) type Told<'a> = &'a dyn Fn(&str, Duration);

impl Http {
    /// The files of a repository.
    pub fn listing(&self, repo: &str, revision: &str, told: Told) -> Result<Listing, Error> {
        let (org, name) = repo.split_once('/').unwrap_or((repo, ""));
        let url = self.url(&["api", "models", org, name, "revision", revision], "");
        self.retry(told, &|| 0, || {
            let mut answer = self.ask(&url, false, 0)?;
            if !answer.response.status().is_success() {
                return Err(self.refused(&answer, &url, repo, revision));
            }
            let body = answer.response.body_mut().with_config().limit(LIST_LIMIT);
            let text = body.read_to_vec().map_err(|e| self.cut(&e.to_string()))?;
            let said: Value = serde_json::from_slice(&text).map_err(|e| strange(&url, format!("no JSON: {e}")))?;
            let commit = said.get("sha").and_then(Value::as_str).filter(|c| is_commit(c));
            let files = said.get("siblings").and_then(Value::as_array);
            let (Some(commit), Some(files)) = (commit, files) else {
                return Err(strange(&url, "it names no commit, or no files".to_owned()).into());
            };
            let name = |file: &Value| Some(file.get("rfilename")?.as_str()?.to_owned());
            Ok(Listing { commit: commit.to_owned(), files: files.iter().filter_map(name).collect() })
        })
    }

    /// The address of a file.
    pub fn file_url(&self, repo: &str, revision: &str, file: &str) -> String {
        let (org, name) = repo.split_once('/').unwrap_or((repo, ""));
        self.url(&[org, name, "resolve", revision], file)
    }

    /// What the hub says of a file; none if the revision has no such file.
    pub fn meta(&self, repo: &str, revision: &str, file: &str, told: Told) -> Result<Option<FileMeta>, Error> {
        let url = self.file_url(repo, revision, file);
        self.retry(told, &|| 0, || {
            let answer = self.ask(&url, true, 0)?;
            let status = answer.response.status();
            let code = answer.response.headers().get("x-error-code").and_then(|v| v.to_str().ok());
            if code == Some("EntryNotFound") {
                return Ok(None);
            }
            // Hubs that do not say what is not there: the list of files will.
            if status.as_u16() == 404 && code.is_none() && answer.commit.is_some() {
                return Ok(None);
            }
            if !(status.is_success() || status.is_redirection()) {
                return Err(self.refused(&answer, &url, repo, revision));
            }
            let lacks = |what: &str| strange(&url, format!("it does not say {what}"));
            let commit = answer.commit.filter(|c| is_commit(c)).ok_or_else(|| lacks("which commit this is"))?;
            let etag = answer.etag.as_deref().map(bare).filter(|e| is_etag(e)).ok_or_else(|| lacks("which content"))?;
            let bytes = answer.size.ok_or_else(|| lacks("how long it is"))?;
            Ok(Some(FileMeta { commit, etag: etag.to_owned(), bytes }))
        })
    }

    /// An answer that broke off.
    fn cut(&self, why: &str) -> Fault {
        let (host, why) = (self.host(), why.to_owned());
        let said = why.clone();
        Fault::Again { why, after: None, last: Box::new(move |tries| Error::Unreachable { host, why: said, tries }) }
    }
}

/// An etag without its quotes, and without the mark of a weak one.
fn bare(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

/// It becomes the name of a folder.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}

/// It becomes the name of a file.
fn is_etag(text: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=128).contains(&text.len()) && text.bytes().all(inside)
}

/// Of large files the etag is the sha256 of the content.
pub(crate) fn as_sha256(etag: &str) -> Option<&str> {
    (etag.len() == 64 && is_hex(etag)).then_some(etag)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}
