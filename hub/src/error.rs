//! What can go wrong: each is one line that says what, where and what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a file is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A variable, or what it names, cannot be used.
    #[error("{variable} {why}")]
    Setting {
        /// Its name.
        variable: &'static str,
        /// What is wrong and what to do.
        why: String,
    },
    /// Not in the cache, and the network is not to be asked.
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
    /// Not in the cache, where only that was looked into.
    #[error("{what} is not in {cache}: `kjit list` says what is")]
    NotHere {
        /// The reference.
        what: String,
        /// The cache folder.
        cache: PathBuf,
    },
    /// No connection, or none that lasts.
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
    /// A host that is who it says cannot be told.
    #[error(
        "{host} shows no certificate that can be trusted ({why}): SSL_CERT_FILE names a file of \
         those that you trust besides"
    )]
    Certificate {
        /// Scheme, name and port.
        host: String,
        /// The reason.
        why: String,
    },
    /// The transfer broke off again and again.
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
        /// How often.
        tries: u32,
    },
    /// The host sends less than it must.
    #[error(
        "{file}: {host} sends {rate} a second, less than {least} over {seconds} s: try later, or \
         allow less (--min-rate); what came is kept"
    )]
    Slow {
        /// The file.
        file: String,
        /// Scheme, name and port.
        host: String,
        /// What came in a second.
        rate: String,
        /// What must come in a second.
        least: String,
        /// Over how many seconds that is measured.
        seconds: u64,
    },
    /// There is no such repository, or none that is shown without a token.
    #[error("{host} has no repository {repo}, or shows it only to some: look at the name{token}")]
    NoRepository {
        /// Scheme, name and port.
        host: String,
        /// `ORG/REPO`.
        repo: String,
        /// What a token has to do with it.
        token: &'static str,
    },
    /// The repository has terms to be accepted.
    #[error("{repo} is gated: accept its terms at {host}/{repo}{token}")]
    Gated {
        /// Scheme, name and port.
        host: String,
        /// `ORG/REPO`.
        repo: String,
        /// What a token has to do with it.
        token: &'static str,
    },
    /// The token is none, or no more.
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
        /// What was asked for.
        revision: String,
    },
    /// No file fits.
    #[error("{what}: {place} has no such GGUF file; {there}")]
    NoFile {
        /// The reference.
        what: String,
        /// Where was looked.
        place: String,
        /// What there is, and what to do.
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
    /// A split model that is not whole.
    #[error("{what}: {place} has not all parts of it: {missing} is missing")]
    Missing {
        /// The reference.
        what: String,
        /// Where was looked.
        place: String,
        /// The first that is missing.
        missing: String,
    },
    /// The host has had enough of us.
    #[error("{host} asks to be left alone (429, Too Many Requests{wait}): try later{token}")]
    TooMany {
        /// Scheme, name and port.
        host: String,
        /// How long, if it said so.
        wait: String,
        /// What a token has to do with it.
        token: &'static str,
    },
    /// An answer that is none of those above.
    #[error("{url} was answered with {status}{tries}: try later, or look at HF_ENDPOINT")]
    Status {
        /// What was asked for, without what is secret in it.
        url: String,
        /// The number and its name.
        status: String,
        /// How often it was tried.
        tries: String,
    },
    /// What is not as the hub's API says.
    #[error("{url} was not answered as the hub does ({why}): look at HF_ENDPOINT")]
    Strange {
        /// What was asked for, without what is secret in it.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// Other bytes than the hub's.
    #[error(
        "{file}: what {host} sent has the sha256 {got}, and the hub's file has {want}: nothing \
         was kept; try again, or look at what is between"
    )]
    Hash {
        /// The file.
        file: String,
        /// Scheme, name and port.
        host: String,
        /// What came.
        got: String,
        /// What it should be.
        want: String,
    },
    /// Another length than the hub's.
    #[error(
        "{file}: {host} has {got} bytes for it, and the hub {want}: try again, or look at what is \
         between"
    )]
    Length {
        /// The file.
        file: String,
        /// Scheme, name and port.
        host: String,
        /// What came, or would.
        got: u64,
        /// What it should be.
        want: u64,
    },
    /// The disk is full, or would be.
    #[error(
        "{file} needs {need} more, and {path} has {free} free: make room, or name another folder \
         by HF_HUB_CACHE; what came is kept"
    )]
    Room {
        /// The file.
        file: String,
        /// The folder.
        path: PathBuf,
        /// How much.
        need: String,
        /// How much there is.
        free: String,
    },
    /// The cache takes nothing.
    #[error("cannot {doing} {path} ({source}): name a folder that can be written by HF_HUB_CACHE")]
    Write {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The cache cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// What.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// Somebody fetches it at this moment.
    #[error("{what} is being fetched by another process: wait for that, or end it")]
    Busy {
        /// The reference.
        what: String,
    },
}

/// What one try came to.
pub(crate) enum Fault {
    /// Trying again makes nothing better.
    Last(Error),
    /// Trying again may help, after so long if the host says so.
    Again {
        /// What went wrong.
        why: String,
        /// What the host asks for.
        after: Option<Duration>,
        /// What is said once it was tried often enough.
        last: Box<dyn FnOnce(u32) -> Error>,
    },
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Last(error)
    }
}

/// Names as a line shows them: the first ones of many.
pub(crate) fn listed(names: &[String]) -> String {
    /// A line says more than names, and a screen has room for few of them.
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

/// What a host or a repository said, as a line shows it: long ones lose their middle.
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
