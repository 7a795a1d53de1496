//! Errors of fetching. Each is one line that names the thing, the place and the cure.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A variable, or the thing that it names, is unusable.
    #[error("{variable} {why}")]
    Setting {
        /// Its name.
        variable: &'static str,
        /// The fault and the cure.
        why: String,
    },
    /// The model is not in the cache, and the network is off.
    #[error(
        "{what} is not in {cache}, and HF_HUB_OFFLINE is set: unset it to fetch, or look what is \
         there with `kjit list`"
    )]
    Offline {
        /// The reference.
        what: String,
        /// The cache folder.
        cache: PathBuf,
    },
    /// The model is not in the cache. The network was not asked.
    #[error("{what} is not in {cache}: `kjit list` lists the models there")]
    NotHere {
        /// The reference.
        what: String,
        /// The cache folder.
        cache: PathBuf,
    },
    /// No connection, or one that breaks off.
    #[error(
        "cannot reach {host} ({why}), after {tries} tries: look at the network, at HTTPS_PROXY \
         and at HF_ENDPOINT"
    )]
    Unreachable {
        /// Scheme, name and port.
        host: String,
        /// The last reason.
        why: String,
        /// How often it was tried.
        tries: u32,
    },
    /// The host's certificate cannot be trusted.
    #[error(
        "{host} shows no certificate that can be trusted ({why}): set SSL_CERT_FILE to a \
         file of trusted certificates"
    )]
    Certificate {
        /// Scheme, name and port.
        host: String,
        /// The reason.
        why: String,
    },
    /// The transfer broke off in every try.
    #[error(
        "{file}: the transfer from {host} broke off {tries} times in a row ({why}): what came is \
         kept, the same command goes on from there"
    )]
    Broken {
        /// The file.
        file: String,
        /// Scheme, name and port.
        host: String,
        /// The last reason.
        why: String,
        /// Number of tries.
        tries: u32,
    },
    /// The host sends less than the minimum rate.
    #[error(
        "{file}: {host} sends {rate} a second, less than {least} over {seconds} s: try later, or \
         allow less (--min-rate); what came is kept"
    )]
    Slow {
        /// The file.
        file: String,
        /// Scheme, name and port.
        host: String,
        /// Rate that was measured, per second.
        rate: String,
        /// Minimum rate per second.
        least: String,
        /// Seconds over which the rate was measured.
        seconds: u64,
    },
    /// The repository does not exist, or needs a token.
    #[error("{host} has no repository {repo}, or shows it only to some: look at the name{token}")]
    NoRepository {
        /// Scheme, name and port.
        host: String,
        /// `ORG/REPO`.
        repo: String,
        /// Advice about a token.
        token: &'static str,
    },
    /// The repository is gated: its terms must be accepted.
    #[error("{repo} is gated: accept its terms at {host}/{repo}{token}")]
    Gated {
        /// Scheme, name and port.
        host: String,
        /// `ORG/REPO`.
        repo: String,
        /// Advice about a token.
        token: &'static str,
    },
    /// The token is invalid or expired.
    #[error(
        "{host} refuses the token (HF_TOKEN, or the file that `hf auth login` writes): make one \
         at {host}/settings/tokens"
    )]
    Token {
        /// Scheme, name and port.
        host: String,
    },
    /// No such branch, tag or commit.
    #[error("{repo} has no revision {revision}: leave @{revision} out, or see {host}/{repo}")]
    NoRevision {
        /// Scheme, name and port.
        host: String,
        /// `ORG/REPO`.
        repo: String,
        /// The revision of the reference.
        revision: String,
    },
    /// No file fits.
    #[error("{what}: {place} has no such GGUF file; {there}")]
    NoFile {
        /// The reference.
        what: String,
        /// The place that was searched.
        place: String,
        /// The files that are there, and the cure.
        there: String,
    },
    /// Several files fit.
    #[error("{what} may be {several}: name one, as {example}")]
    Several {
        /// The reference.
        what: String,
        /// The files.
        several: String,
        /// A reference to one of them.
        example: String,
    },
    /// A split model lacks a part.
    #[error("{what}: {place} has not all parts of it: {missing} is missing")]
    Missing {
        /// The reference.
        what: String,
        /// The place that was searched.
        place: String,
        /// The first missing part.
        missing: String,
    },
    /// The host limits the rate of requests.
    #[error("{host} asks to be left alone (429, Too Many Requests{wait}): try later{token}")]
    TooMany {
        /// Scheme, name and port.
        host: String,
        /// Pause that the host asks for, if it named one.
        wait: String,
        /// Advice about a token.
        token: &'static str,
    },
    /// Any other unsuccessful answer.
    #[error("{url} was answered with {status}{tries}: try later, or look at HF_ENDPOINT")]
    Status {
        /// The address, without its secret parts.
        url: String,
        /// The number and its name.
        status: String,
        /// Number of tries.
        tries: String,
    },
    /// The answer is not one of the hub's API.
    #[error("{url} was not answered as the hub does ({why}): look at HF_ENDPOINT")]
    Strange {
        /// The address, without its secret parts.
        url: String,
        /// The difference.
        why: String,
    },
    /// The content's digest differs from the hub's.
    #[error(
        "{file}: what {host} sent has the sha256 {got}, and the hub's file has {want}: nothing \
         was kept; try again, or check any proxy in between"
    )]
    Hash {
        /// The file.
        file: String,
        /// Scheme, name and port.
        host: String,
        /// Digest of the bytes that came.
        got: String,
        /// Digest that the hub announced.
        want: String,
    },
    /// The content's length differs from the hub's.
    #[error(
        "{file}: {host} has {got} bytes for it, and the hub {want}: try again, or check any \
         proxy in between"
    )]
    Length {
        /// The file.
        file: String,
        /// Scheme, name and port.
        host: String,
        /// Length of the bytes that came or were announced.
        got: u64,
        /// Length that the hub announced.
        want: u64,
    },
    /// The disk has too little free space.
    #[error(
        "{file} needs {need} more, and {path} has {free} free: make room, or name another folder \
         by HF_HUB_CACHE; what came is kept"
    )]
    Room {
        /// The file.
        file: String,
        /// The folder.
        path: PathBuf,
        /// Space that the rest needs.
        need: String,
        /// Space that is free.
        free: String,
    },
    /// The cache cannot be written.
    #[error("cannot {doing} {path} ({source}): name a folder that can be written by HF_HUB_CACHE")]
    Write {
        /// The operation.
        doing: &'static str,
        /// Its file or folder.
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
    /// Another process fetches the model now.
    #[error("{what} is being fetched by another process: wait for that, or end it")]
    Busy {
        /// The reference.
        what: String,
    },
}

/// The error of one try.
pub(crate) enum Fault {
    /// Another try would fail in the same way.
    Last(Error),
    /// Another try may succeed. A host may ask for a pause before it.
    Again {
        /// The reason.
        why: String,
        /// The pause that the host asks for.
        after: Option<Duration>,
        /// The error after the last try; gets the number of tries.
        last: Box<dyn FnOnce(u32) -> Error>,
    },
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Last(error)
    }
}

/// Names for an error line: the first ones of many.
pub(crate) fn listed(names: &[String]) -> String {
    /// Limit in characters. An error line holds more than names.
    const ROOM: usize = 200;
    let (mut list, mut left) = (String::new(), names.len());
    for name in names.iter().map(|name| shown(name)) {
        if !list.is_empty() && list.len() + name.len() > ROOM {
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

/// Text of a host or a repository for an error line. The middle of a long text is left out.
pub(crate) fn shown(text: &str) -> String {
    const EACH_END: usize = 50;
    let chars = text.chars().count();
    if chars <= 2 * EACH_END {
        return text.to_owned();
    }
    let (begin, end) = (text.chars().take(EACH_END), text.chars().skip(chars - EACH_END));
    begin.chain(['…']).chain(end).collect()
}

/// Bytes as people read them.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)];
    match UNITS.iter().find(|(_, unit)| n >= *unit) {
        Some((name, unit)) => format!("{:.2} {name}", n as f64 / *unit as f64),
        None => format!("{n} B"),
    }
}
