//! The hub's API: a repository's files, and a file's commit, etag and length.

use crate::error::{Error, Fault, shown};
use crate::http::{Http, HttpResponse, strange};
use crate::rate_meter::RateMeter;
use serde::Deserialize;
use std::io::{self, Read};
use std::time::Duration;

/// Maximum bytes of a file list: ten times the list of the largest repository.
const LIST_LIMIT: u64 = 64 << 20;

/// A repository at a revision.
pub(crate) struct Listing {
    /// The commit that the revision points to.
    pub commit: String,
    /// Paths of all files.
    pub files: Vec<String>,
}

/// The used fields of the hub's answer. All other fields are skipped.
#[derive(Deserialize)]
struct ModelInfoJson {
    sha: Option<String>,
    siblings: Option<Vec<Sibling>>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: Option<String>,
}

/// A file at a commit.
pub(crate) struct FileMeta {
    pub commit: String,
    /// The etag of the content. For large files it is the SHA-256.
    pub etag: String,
    pub bytes: u64,
}

/// Callback before each retry.
pub(crate) type OnRetry<'a> = &'a dyn Fn(&str, Duration);

impl Http {
    /// The files of a repository.
    pub fn listing(&self, repo: &str, revision: &str, told: OnRetry) -> Result<Listing, Error> {
        let (org, name) = repo.split_once('/').unwrap_or((repo, ""));
        let url = self.url(&["api", "models", org, name, "revision", revision], "");
        self.retry(told, &|| 0, || {
            let mut answer = self.ask(&url, false, 0)?;
            if !answer.response.status().is_success() {
                return Err(self.refused(&answer, &url, repo, revision));
            }
            let text = self.whole(&mut answer, &url)?;
            let said: ModelInfoJson = serde_json::from_slice(&text)
                .map_err(|e| strange(&url, format!("not JSON of a hub: {e}")))?;
            let (Some(commit), Some(files)) = (said.sha.filter(|c| is_commit(c)), said.siblings)
            else {
                return Err(strange(&url, "it has no commit or no list of files".to_owned()).into());
            };
            Ok(Listing {
                commit,
                files: files.into_iter().filter_map(|file| file.rfilename).collect(),
            })
        })
    }

    /// Reads an answer completely.
    fn whole(&self, answer: &mut HttpResponse, url: &str) -> Result<Vec<u8>, Fault> {
        let mut pace = RateMeter::new(self.pace);
        let mut body = answer.response.body_mut().with_config().limit(LIST_LIMIT).reader();
        let (mut text, mut piece) = (vec![], vec![0; 64 << 10]);
        loop {
            let n = match body.read(&mut piece) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.cut(&e.to_string())),
            };
            let Some(read) = piece.get(..n).filter(|r| !r.is_empty()) else { return Ok(text) };
            pace.came(n).map_err(|rate| self.slow(url, &answer.host, rate))?;
            text.extend_from_slice(read);
        }
    }

    /// The address of a file.
    pub fn file_url(&self, repo: &str, revision: &str, file: &str) -> String {
        let (org, name) = repo.split_once('/').unwrap_or((repo, ""));
        self.url(&[org, name, "resolve", revision], file)
    }

    /// Queries the hub's data about a file. `None` if the revision has no such file.
    pub fn meta(
        &self,
        repo: &str,
        revision: &str,
        file: &str,
        told: OnRetry,
    ) -> Result<Option<FileMeta>, Error> {
        let url = self.file_url(repo, revision, file);
        self.retry(told, &|| 0, || {
            let answer = self.ask(&url, true, 0)?;
            let status = answer.response.status();
            let code = answer.response.headers().get("x-error-code").and_then(|v| v.to_str().ok());
            if code == Some("EntryNotFound") {
                return Ok(None);
            }
            // Some hubs do not report whether the file or the revision is missing. The file list
            // shows it.
            if status.as_u16() == 404 && code.is_none() && answer.commit.is_some() {
                return Ok(None);
            }
            if !(status.is_success() || status.is_redirection()) {
                return Err(self.refused(&answer, &url, repo, revision));
            }
            let lacks = |what: &str| strange(&url, format!("it does not contain {what}"));
            let commit =
                answer.commit.filter(|c| is_commit(c)).ok_or_else(|| lacks("the commit"))?;
            let etag = answer
                .etag
                .as_deref()
                .map(bare)
                .filter(|e| is_etag(e))
                .ok_or_else(|| lacks("the etag of the file"))?;
            let bytes = answer.size.ok_or_else(|| lacks("the length of the file"))?;
            Ok(Some(FileMeta { commit, etag: etag.to_owned(), bytes }))
        })
    }

    /// The fault of an answer that ended early.
    fn cut(&self, why: &str) -> Fault {
        let (host, why) = (self.host(), shown(why));
        let said = why.clone();
        Fault::Again {
            why,
            after: None,
            last: Box::new(move |tries| Error::Unreachable { host, why: said, tries }),
        }
    }
}

/// An etag without its quotes and without the prefix `W/` of weak etags.
fn bare(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

/// Whether the string is safe as a folder name.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}

/// Whether the string is safe as a file name.
fn is_etag(text: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=128).contains(&text.len()) && text.bytes().all(inside)
}

/// The SHA-256 of the content of a large file, which is its etag. `None` for small files.
pub(crate) fn as_sha256(etag: &str) -> Option<&str> {
    (etag.len() == 64 && is_hex(etag)).then_some(etag)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}
