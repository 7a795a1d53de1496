//! Errors of fetching. Each is one line: the thing, the place, and the remedy.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A variable is unusable, or the file or folder that it names.
    #[error("{variable} {why}")]
    Setting {
        /// Name of the variable.
        variable: &'static str,
        /// The fault and the remedy.
        why: String,
    },
    /// The model is not in the cache, and network access is off.
    #[error(
        "{what} is not in {cache}, and HF_HUB_OFFLINE is set: \
         unset it to download, or run `kjit list` to see the downloaded models"
    )]
    Offline {
        /// The reference to the model.
        what: String,
        /// The cache folder.
        cache: PathBuf,
    },
    /// The model is not in the cache. The command does not use the network.
    #[error("{what} is not in {cache}: `kjit list` lists the models there")]
    NotHere {
        /// The reference to the model.
        what: String,
        /// The cache folder.
        cache: PathBuf,
    },
    /// The connection failed or was interrupted.
    #[error(
        "cannot reach {host} ({why}), after {tries} tries: \
         check the network, HTTPS_PROXY and HF_ENDPOINT"
    )]
    Unreachable {
        /// Scheme, host name and port.
        host: String,
        /// The error of the last try.
        why: String,
        /// Number of tries.
        tries: u32,
    },
    /// The host's certificate cannot be trusted.
    #[error(
        "{host} has no trusted certificate ({why}): \
         set SSL_CERT_FILE to a file of trusted certificates"
    )]
    Certificate {
        /// Scheme, host name and port.
        host: String,
        /// The reason.
        why: String,
    },
    /// The transfer was interrupted in every try.
    #[error(
        "{file}: the transfer from {host} broke off {tries} times in a row ({why}): \
         downloaded parts are kept; run the command again to resume"
    )]
    Broken {
        /// The file.
        file: String,
        /// Scheme, host name and port.
        host: String,
        /// The error of the last try.
        why: String,
        /// Number of tries.
        tries: u32,
    },
    /// The host sends less than the minimum rate.
    #[error(
        "{file}: {host} sends {rate} per second, less than {least} over {seconds} s: \
         try later, or allow a lower rate (--min-rate); downloaded parts are kept"
    )]
    Slow {
        /// The file.
        file: String,
        /// Scheme, host name and port.
        host: String,
        /// The measured rate, per second.
        rate: String,
        /// Minimum rate per second.
        least: String,
        /// Seconds over which the rate was measured.
        seconds: u64,
    },
    /// The repository does not exist, or access needs a token.
    #[error("{host} has no repository {repo}, or it is private: check the name{token}")]
    NoRepository {
        /// Scheme, host name and port.
        host: String,
        /// `ORG/REPO`.
        repo: String,
        /// Advice about the token.
        token: &'static str,
    },
    /// The repository is gated: its terms must be accepted.
    #[error("{repo} is gated: accept its terms at {host}/{repo}{token}")]
    Gated {
        /// Scheme, host name and port.
        host: String,
        /// `ORG/REPO`.
        repo: String,
        /// Advice about the token.
        token: &'static str,
    },
    /// The token is invalid or expired.
    #[error(
        "{host} refuses the token (HF_TOKEN, or the file that `hf auth login` writes): \
         create one at {host}/settings/tokens"
    )]
    Token {
        /// Scheme, host name and port.
        host: String,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{repo} has no revision {revision}: remove @{revision}, or see {host}/{repo}")]
    NoRevision {
        /// Scheme, host name and port.
        host: String,
        /// `ORG/REPO`.
        repo: String,
        /// The revision of the reference.
        revision: String,
    },
    /// No GGUF file matches the reference.
    #[error("{what}: {place} has no such GGUF file; {there}")]
    NoFile {
        /// The reference.
        what: String,
        /// The repository or folder that was searched.
        place: String,
        /// The existing files, and the remedy.
        there: String,
    },
    /// Several files match the reference.
    #[error("{what} matches several models ({several}): name one, for example {example}")]
    Several {
        /// The reference.
        what: String,
        /// The files that match.
        several: String,
        /// An example reference to one of them.
        example: String,
    },
    /// A part of a split model is missing.
    #[error("{what}: {place} has an incomplete model: {missing} is missing")]
    Missing {
        /// The reference.
        what: String,
        /// The repository or folder that was searched.
        place: String,
        /// The first missing part.
        missing: String,
    },
    /// The host limits the rate of requests.
    #[error("{host} limits the rate of requests (429, Too Many Requests{wait}): try later{token}")]
    TooMany {
        /// Scheme, host name and port.
        host: String,
        /// The pause that the host requests, if any.
        wait: String,
        /// Advice about the token.
        token: &'static str,
    },
    /// Any other answer with an error status.
    #[error("{url} was answered with {status}{tries}: try later, or check HF_ENDPOINT")]
    Status {
        /// The URL, without its secret parts.
        url: String,
        /// Status number and its name.
        status: String,
        /// Number of tries.
        tries: String,
    },
    /// The answer does not have the format of the hub's API.
    #[error("{url} was not answered in the format of the hub ({why}): check HF_ENDPOINT")]
    Strange {
        /// The URL, without its secret parts.
        url: String,
        /// The difference from the expected format.
        why: String,
    },
    /// The digest of the content differs from the digest of the hub.
    #[error(
        "{file}: {host} sent content with sha256 {got}, but the hub lists {want}: \
         the download was discarded; try again, or check for a proxy"
    )]
    Hash {
        /// The file.
        file: String,
        /// Scheme, host name and port.
        host: String,
        /// Digest of the received bytes.
        got: String,
        /// Digest according to the hub.
        want: String,
    },
    /// The length of the content differs from the length at the hub.
    #[error(
        "{file}: {host} has {got} bytes, but the hub lists {want}: \
         try again, or check any proxy in between"
    )]
    Length {
        /// The file.
        file: String,
        /// Scheme, host name and port.
        host: String,
        /// Number of bytes that were received or announced.
        got: u64,
        /// Length according to the hub.
        want: u64,
    },
    /// The disk has too little free space.
    #[error(
        "{file} needs {need} more, but {path} has {free} free: \
         free some space, or set HF_HUB_CACHE to a folder with more; downloaded parts are kept"
    )]
    Room {
        /// The file.
        file: String,
        /// The folder.
        path: PathBuf,
        /// Space that the rest of the file needs.
        need: String,
        /// Free space.
        free: String,
    },
    /// The cache cannot be written.
    #[error("cannot {doing} {path} ({source}): set HF_HUB_CACHE to a writable folder")]
    Write {
        /// The operation.
        doing: &'static str,
        /// The file or folder of the operation.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The cache cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process is fetching the model.
    #[error("{what} is being downloaded by another process: wait for it, or stop it")]
    Busy {
        /// The reference.
        what: String,
    },
}

/// The error of one try.
pub(crate) enum Fault {
    /// Another try would fail in the same way.
    Last(Error),
    /// Another try may succeed. A host may request a pause before it.
    Again {
        /// The reason.
        why: String,
        /// The pause that the host requests.
        after: Option<Duration>,
        /// Creates the error after the last try, from the number of tries.
        last: Box<dyn FnOnce(u32) -> Error>,
    },
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Last(error)
    }
}

/// A list of names for an error line: the first names if there are many.
pub(crate) fn listed(names: &[String]) -> String {
    /// Maximum characters of the list: an error line has other words too.
    const MAX_LIST_CHARS: usize = 200;
    let (mut list, mut left) = (String::new(), names.len());
    for name in names.iter().map(|name| shown(name)) {
        if !list.is_empty() && list.len() + name.len() > MAX_LIST_CHARS {
            break;
        }
        list.push_str(if list.is_empty() { "" } else { ", " });
        list.push_str(&name);
        left -= 1;
    }
    match left {
        0 => list,
        more => format!("{list} and {more} more"),
    }
}

/// Text of a host or a repository for an error line. The middle of a long text is replaced by dots.
pub(crate) fn shown(text: &str) -> String {
    const EACH_END: usize = 50;
    let chars = text.chars().count();
    if chars <= 2 * EACH_END {
        return text.to_owned();
    }
    let (begin, end) = (text.chars().take(EACH_END), text.chars().skip(chars - EACH_END));
    begin.chain(['…']).chain(end).collect()
}

/// A number of bytes with a readable unit.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)];
    match UNITS.iter().find(|(_, unit)| n >= *unit) {
        Some((name, unit)) => format!("{:.2} {name}", n as f64 / *unit as f64),
        None => format!("{n} B"),
    }
}
