//! Ranks find each other: all but the first one connect to it, say who they are and what they compute, and are told
//! what the vendor's library needs. The connections stay: a rank that ends, in whatever way, ends its own.

use super::{Ranks, RanksError};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// First word of a rank's line.
const WORD: &str = "kjit-rank-1";
/// Bytes of a line at most.
const LINE: usize = 4096;
/// How long who has connected may take for its line.
const SLOW: Duration = Duration::from_secs(5);

/// What all ranks must have alike, in words without spaces: what of it is not the same is named.
pub(crate) type Hello = Vec<(&'static str, String)>;

/// Connections by rank: the first one's to all, the others' to the first.
#[derive(Debug)]
pub(crate) struct Links(pub Vec<(usize, TcpStream)>);

impl Links {
    /// The first rank whose connection has ended.
    pub fn gone(&self) -> Option<usize> {
        self.0.iter().find(|(_, stream)| matches!(stream.peek(&mut [0]), Ok(0))).map(|(rank, _)| *rank)
    }
}

/// The ranks' connections, and what the first one has for all.
pub(crate) fn meet(
    ranks: &Ranks,
    hello: &Hello,
    first: impl FnOnce() -> Result<Vec<u8>, RanksError>,
) -> Result<(Vec<u8>, Links), RanksError> {
    let (bytes, links) = match ranks.rank {
        0 => gather(ranks, hello, first)?,
        _ => join(ranks, hello)?,
    };
    for (_, stream) in &links.0 {
        let set = stream.set_read_timeout(None).and_then(|()| stream.set_nonblocking(true));
        set.and_then(|()| stream.set_nodelay(true)).map_err(|e| meeting(format!("a connection: {e}")))?;
    }
    Ok((bytes, links))
}

fn meeting(why: String) -> RanksError {
    RanksError::Meeting(why)
}

fn place(ranks: &Ranks) -> String {
    format!("{}:{}", ranks.host, ranks.port)
}

fn numbers(all: &[usize]) -> String {
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    format!("{} {}", if all.len() == 1 { "rank" } else { "ranks" }, all.join(", "))
}

/// The first rank's part.
fn gather(
    ranks: &Ranks,
    hello: &Hello,
    first: impl FnOnce() -> Result<Vec<u8>, RanksError>,
) -> Result<(Vec<u8>, Links), RanksError> {
    // A name that leads here by a way around (a service's, say) is none that can be listened at.
    let listener =
        TcpListener::bind((&*ranks.host, ranks.port)).or_else(|_| TcpListener::bind(("0.0.0.0", ranks.port)));
    let listener = listener.and_then(|l| l.set_nonblocking(true).map(|()| l));
    let listener = listener.map_err(|e| meeting(format!("rank 0 cannot listen at {}: {e}", place(ranks))))?;
    let end = Instant::now() + ranks.wait;
    let mut came: Vec<(usize, TcpStream)> = vec![];
    while came.len() + 1 < ranks.size {
        let Ok((mut stream, _)) = listener.accept() else {
            if let Some(rank) = ended(&came) {
                return refuse(came, format!("rank {rank} has ended before all were there"));
            }
            if Instant::now() > end {
                let missing: Vec<usize> = (1..ranks.size).filter(|r| came.iter().all(|(rank, _)| rank != r)).collect();
                let (who, seconds) = (numbers(&missing), ranks.wait.as_secs());
                return refuse(came, format!("{who} did not come to {} within {seconds} s", place(ranks)));
            }
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        // Who is no rank says something else, or nothing.
        let set = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(SLOW)));
        let Some(line) = set.ok().and_then(|()| line(&mut stream).ok()) else { continue };
        let mut words = line.split(' ');
        if words.next() != Some(WORD) {
            continue;
        }
        let rank = words.next().and_then(|w| w.parse::<usize>().ok()).unwrap_or(0);
        if rank == 0 || rank >= ranks.size || came.iter().any(|(other, _)| *other == rank) {
            came.push((rank, stream));
            return refuse(came, format!("two processes say that they are rank {rank} of {}", ranks.size));
        }
        let theirs: Vec<&str> = words.collect();
        let differs = hello.iter().enumerate().find(|(i, (_, ours))| theirs.get(*i) != Some(&&**ours));
        came.push((rank, stream));
        if let Some((i, (what, ours))) = differs {
            let theirs = theirs.get(i).copied().unwrap_or("none");
            let why = format!("rank {rank} has another {what} than rank 0 ({theirs}, not {ours})");
            return refuse(came, why);
        }
    }
    let bytes = match first() {
        Ok(bytes) => bytes,
        Err(error) => return refuse(came, error.to_string()),
    };
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    for (rank, stream) in &mut came {
        let sent = stream.write_all(format!("go {hex}\n").as_bytes());
        sent.map_err(|e| meeting(format!("rank {rank} cannot be told: {e}")))?;
    }
    came.sort_by_key(|(rank, _)| *rank);
    Ok((bytes, Links(came)))
}

/// One of them whose connection has ended.
fn ended(came: &[(usize, TcpStream)]) -> Option<usize> {
    let gone = |stream: &TcpStream| {
        let _ = stream.set_nonblocking(true);
        let gone = matches!(stream.peek(&mut [0]), Ok(0));
        let _ = stream.set_nonblocking(false);
        gone
    };
    came.iter().find(|(_, stream)| gone(stream)).map(|(rank, _)| *rank)
}

/// Tells all that nothing comes of it.
fn refuse<T>(came: Vec<(usize, TcpStream)>, why: String) -> Result<T, RanksError> {
    for (_, mut stream) in came {
        // Who is gone is not told.
        let _ = stream.write_all(format!("no {why}\n").as_bytes());
    }
    Err(meeting(why))
}

/// Another rank's part.
fn join(ranks: &Ranks, hello: &Hello) -> Result<(Vec<u8>, Links), RanksError> {
    let end = Instant::now() + ranks.wait;
    let seconds = ranks.wait.as_secs();
    let mut stream = loop {
        // The name may come to be known only when the first rank is there.
        let all = (&*ranks.host, ranks.port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let connected = all.and_then(|all| {
            let each = all.iter().map(|at| TcpStream::connect_timeout(at, SLOW));
            each.reduce(Result::or).unwrap_or_else(|| Err(std::io::Error::other("it has no address")))
        });
        match connected {
            Ok(stream) => break stream,
            Err(e) if Instant::now() > end => {
                return Err(meeting(format!("rank 0 did not listen at {} within {seconds} s ({e})", place(ranks))));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    let words: Vec<&str> = hello.iter().map(|(_, said)| &**said).collect();
    let said = format!("{WORD} {} {}\n", ranks.rank, words.join(" "));
    // The first one waits for the others as long, and says so by itself.
    let wait = ranks.wait + SLOW;
    let answer = stream.write_all(said.as_bytes()).and_then(|()| stream.set_read_timeout(Some(wait)));
    let answer = answer.and_then(|()| line(&mut stream));
    let answer = answer.map_err(|e| meeting(format!("rank 0 gave no answer at {} ({e})", place(ranks))))?;
    match answer.split_once(' ') {
        Some(("go", hex)) => {
            let byte = |i: usize| hex.get(2 * i..2 * i + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
            let bytes: Option<Vec<u8>> = (0..hex.len() / 2).map(byte).collect();
            let bytes = bytes.ok_or_else(|| meeting("rank 0 said something that is no number".to_owned()))?;
            Ok((bytes, Links(vec![(0, stream)])))
        }
        Some(("no", why)) => Err(meeting(why.to_owned())),
        _ => Err(meeting(format!("whoever listens at {} is no rank of kjit", place(ranks)))),
    }
}

/// A line, without its end. Byte by byte: what is behind it is not this one's.
fn line(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut all = vec![];
    let mut byte = [0u8];
    while all.len() < LINE {
        stream.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => return String::from_utf8(all).map_err(std::io::Error::other),
            [b] => all.push(b),
        }
    }
    Err(std::io::Error::other("a line that does not end"))
}
