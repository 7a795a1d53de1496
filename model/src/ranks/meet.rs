//! Ranks find each other: all but the first one connect to it, say who they are and what they compute, and are told
//! what the vendor's library needs. The connections stay: a rank that ends, in whatever way, ends its own.

use super::{Ranks, RanksError};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// First word of a rank's line.
const WORD: &str = "kjit-rank-2";
/// Bytes of a line at most.
const LINE: usize = 4096;
/// How long who has connected may take for its whole line.
const SLOW: Duration = Duration::from_secs(5);
/// Connections at most that have not said their line yet: of more, the oldest is closed.
const UNKNOWN: usize = 64;
/// Characters at most that are shown of what another has said.
const SHOWN: usize = 400;

/// What all ranks must have alike, in words without spaces: what of it is not the same is named.
pub(crate) type Hello = Vec<(&'static str, String)>;

/// Connections by rank: the first one's to all, the others' to the first; and what there is to say about the place.
#[derive(Debug)]
pub(crate) struct Links(pub Vec<(usize, TcpStream)>, pub Option<String>);

impl Links {
    /// The first rank whose connection has ended.
    pub fn gone(&self) -> Option<usize> {
        self.0.iter().find(|(_, stream)| ended(stream)).map(|(rank, _)| *rank)
    }
}

/// Whether a connection that does not block has ended: closed, reset, or in any other way.
fn ended(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(n) => n == 0,
        Err(e) => !waits(&e),
    }
}

fn waits(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted)
}

/// What came over the network, as it may be shown: no control characters, and not too long.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
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

/// Who has connected and not said its line yet.
struct Unknown {
    stream: TcpStream,
    line: Vec<u8>,
    since: Instant,
}

impl Unknown {
    /// Its line, if it is there; an error for who will say none.
    fn line(&mut self) -> Result<Option<String>, ()> {
        let mut bytes = [0u8; 512];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(()),
                Ok(n) => self.line.extend(bytes.iter().take(n)),
                Err(e) if waits(&e) => break,
                Err(_) => return Err(()),
            }
            if self.line.len() > LINE {
                return Err(());
            }
        }
        // A rank says nothing behind its line before it is answered.
        match self.line.strip_suffix(b"\n") {
            Some(line) => String::from_utf8(line.to_vec()).map(Some).map_err(|_| ()),
            None if self.since.elapsed() > SLOW => Err(()),
            None => Ok(None),
        }
    }
}

/// Where the first rank listens, and what there is to say about it.
fn listen(ranks: &Ranks) -> Result<(TcpListener, Option<String>), RanksError> {
    let failed = |e: &std::io::Error| meeting(format!("rank 0 cannot listen at {}: {e}", place(ranks)));
    let everywhere = |why: String| {
        let listener = TcpListener::bind(("0.0.0.0", ranks.port));
        let listener = listener.map_err(|e| {
            meeting(format!("rank 0 cannot listen at {}: {why}, and at all addresses: {e}", place(ranks)))
        })?;
        Ok((listener, Some(format!("{why}: rank 0 listens at all addresses of its machine, port {}", ranks.port))))
    };
    let mut all: Vec<SocketAddr> = match (&*ranks.host, ranks.port).to_socket_addrs() {
        Ok(all) => all.collect(),
        Err(e) => return everywhere(format!("{} is not known here ({e})", shown(&ranks.host))),
    };
    // Debian gives a machine's own name 127.0.1.1, where no other machine comes. A number, or localhost, is meant.
    let meant = ranks.host == "localhost" || ranks.host.parse::<std::net::IpAddr>().is_ok();
    // The first that can be listened at is taken, so that one goes where there is another.
    if !meant {
        all.retain(|at| !at.ip().is_loopback());
    }
    if all.is_empty() {
        return everywhere(format!("{} leads to this machine alone", shown(&ranks.host)));
    }
    match TcpListener::bind(&*all) {
        Ok(listener) => Ok((listener, None)),
        // A name that leads here by a way around (a service's, say) is none that can be listened at.
        Err(e) if e.kind() == std::io::ErrorKind::AddrNotAvailable => {
            everywhere(format!("{} is no address of this machine ({e})", shown(&ranks.host)))
        }
        Err(e) => Err(failed(&e)),
    }
}

/// The first rank's part.
fn gather(
    ranks: &Ranks,
    hello: &Hello,
    first: impl FnOnce() -> Result<Vec<u8>, RanksError>,
) -> Result<(Vec<u8>, Links), RanksError> {
    let (listener, said) = listen(ranks)?;
    let set = listener.set_nonblocking(true);
    set.map_err(|e| meeting(format!("rank 0 cannot listen at {}: {e}", place(ranks))))?;
    let end = Instant::now() + ranks.wait;
    let mut came: Vec<(usize, TcpStream)> = vec![];
    let mut unknown: Vec<Unknown> = vec![];
    while came.len() + 1 < ranks.size {
        if let Some((rank, _)) = came.iter().find(|(_, stream)| ended(stream)) {
            let why = format!("rank {rank} has ended before all were there");
            return refuse(came, why);
        }
        if Instant::now() > end {
            let missing: Vec<usize> = (1..ranks.size).filter(|r| came.iter().all(|(rank, _)| rank != r)).collect();
            let (who, seconds) = (numbers(&missing), ranks.wait.as_secs());
            let said = said.map_or_else(String::new, |said| format!(" ({said})"));
            return refuse(came, format!("{who} did not come to {} within {seconds} s{said}", place(ranks)));
        }
        match listener.accept() {
            Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                if unknown.len() == UNKNOWN {
                    unknown.remove(0);
                }
                unknown.push(Unknown { stream, line: vec![], since: Instant::now() });
            }
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
        for mut who in std::mem::take(&mut unknown) {
            match who.line() {
                Ok(Some(line)) => {
                    if let Some(why) = welcome(ranks, hello, &line, who.stream, &mut came) {
                        return refuse(came, why);
                    }
                }
                Ok(None) => unknown.push(who),
                // Who is no rank says something else, or nothing.
                Err(()) => {}
            }
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
    Ok((bytes, Links(came, said)))
}

/// Takes who said this line for a rank, or sends it away; the reason where nothing comes of the meeting.
fn welcome(
    ranks: &Ranks,
    hello: &Hello,
    line: &str,
    mut stream: TcpStream,
    came: &mut Vec<(usize, TcpStream)>,
) -> Option<String> {
    let mut words = line.split(' ');
    if words.next() != Some(WORD) {
        return None;
    }
    let (rank, job) = (words.next().and_then(|w| w.parse::<usize>().ok()), words.next());
    let mut away = |why: String| {
        // Who is gone is not told.
        let _ = stream.write_all(format!("no {why}\n").as_bytes());
    };
    if job != Some(&*ranks.job) {
        // Another job of this machine that came to this port: neither ends the other.
        away(format!("another job's rank 0 listens at {}: give each job its MASTER_PORT", place(ranks)));
        return None;
    }
    let Some(rank) = rank.filter(|rank| *rank > 0) else {
        away("a number of a rank above 0 is needed".to_owned());
        return None;
    };
    let theirs: Vec<&str> = words.collect();
    let differs = hello.iter().enumerate().find(|(i, (_, ours))| theirs.get(*i) != Some(&&**ours));
    if let Some((i, (what, ours))) = differs {
        let theirs = shown(theirs.get(i).copied().unwrap_or("none"));
        came.push((rank, stream));
        return Some(format!("rank {rank} has another {what} than rank 0 ({theirs}, not {ours})"));
    }
    if rank >= ranks.size {
        away(format!("rank {rank} is none of {} ranks", ranks.size));
        return None;
    }
    let twice = came.iter().any(|(other, _)| *other == rank);
    came.push((rank, stream));
    twice.then(|| format!("two processes say that they are rank {rank} of {}", ranks.size))
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
            let mut last = Err(std::io::Error::other("it has no address"));
            // The first that answers: a second connection would be a second process for rank 0.
            for at in &all {
                last = TcpStream::connect_timeout(at, SLOW);
                if last.is_ok() {
                    break;
                }
            }
            last
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
    let said = format!("{WORD} {} {} {}\n", ranks.rank, ranks.job, words.join(" "));
    // The first one waits for the others as long, and says so by itself.
    let wait = ranks.wait + SLOW;
    let until = Instant::now() + wait;
    let answer = stream.write_all(said.as_bytes()).and_then(|()| line(&mut stream, until));
    let answer = answer.map_err(|e| meeting(format!("rank 0 gave no answer at {} ({e})", place(ranks))))?;
    match answer.split_once(' ') {
        Some(("go", hex)) => {
            let byte = |i: usize| hex.get(2 * i..2 * i + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
            let bytes: Option<Vec<u8>> = (0..hex.len() / 2).map(byte).collect();
            let bytes = bytes.ok_or_else(|| meeting("rank 0 said something that is no number".to_owned()))?;
            Ok((bytes, Links(vec![(0, stream)], None)))
        }
        Some(("no", why)) => Err(meeting(shown(why))),
        _ => Err(meeting(format!("whoever listens at {} is no rank of kjit", place(ranks)))),
    }
}

/// A line, without its end, until then. Byte by byte: what is behind it is not this one's.
fn line(stream: &mut TcpStream, until: Instant) -> std::io::Result<String> {
    let mut all = vec![];
    let mut byte = [0u8];
    while all.len() < LINE {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        stream.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => return String::from_utf8(all).map_err(std::io::Error::other),
            [b] => all.push(b),
        }
    }
    Err(std::io::Error::other("a line that does not end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(rank: usize, size: usize, port: u16, wait: &str) -> Ranks {
        Ranks::of(&|name| match name {
            "RANK" => Some(rank.to_string()),
            "WORLD_SIZE" => Some(size.to_string()),
            "MASTER_ADDR" => Some("127.0.0.1".to_owned()),
            "MASTER_PORT" => Some(port.to_string()),
            "KJIT_RANKS_WAIT" => Some(wait.to_owned()),
            _ => None,
        })
        .unwrap()
    }

    /// A port that nobody has.
    fn port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    fn meets(ranks: &Ranks, what: &str) -> Result<Vec<u8>, String> {
        let met = meet(ranks, &vec![("word", what.to_owned())], || Ok(vec![1, 2, 255]));
        met.map(|(bytes, links)| {
            assert_eq!(links.0.len(), if ranks.rank == 0 { ranks.size - 1 } else { 1 });
            bytes
        })
        .map_err(|e| e.to_string())
    }

    /// Who connects as soon as somebody listens, and says this.
    fn says(port: u16, words: &str) -> TcpStream {
        let end = Instant::now() + Duration::from_secs(10);
        let mut stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(e) => assert!(Instant::now() < end, "{e}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        stream.write_all(words.as_bytes()).unwrap();
        stream
    }

    #[test]
    fn ranks_meet_in_spite_of_strangers() {
        let port = port();
        std::thread::scope(|scope| {
            let zero = scope.spawn(|| meets(&ranks(0, 3, port, "30"), "same"));
            // A page's reader, another job's rank, a rank with no number, one above all, one of which no end comes.
            let words = [
                "GET / HTTP/1.1\r\n\r\n",
                "kjit-rank-2 1 other same\n",
                "kjit-rank-2 x - same\n",
                "kjit-rank-2 7 - same\n",
                "kjit-rank-2 1 - sa",
                "",
            ];
            let mut strangers = words.map(|words| says(port, words));
            for (stranger, told) in strangers.iter_mut().skip(1).zip(["another job's", "above 0", "none of 3 ranks"]) {
                let answer = line(stranger, Instant::now() + Duration::from_secs(10)).unwrap();
                assert!(answer.starts_with("no ") && answer.contains(told), "{answer}");
            }
            let others = [1, 2].map(|rank| scope.spawn(move || meets(&ranks(rank, 3, port, "30"), "same")));
            let all = [zero].into_iter().chain(others).map(|one| one.join().unwrap());
            all.for_each(|met| assert_eq!(met, Ok(vec![1, 2, 255])));
        });
    }

    #[test]
    fn a_slow_line_does_not_hold_the_first_rank() {
        let port = port();
        std::thread::scope(|scope| {
            let start = Instant::now();
            let zero = scope.spawn(|| meets(&ranks(0, 2, port, "1"), "same"));
            let mut slow = says(port, "k");
            while !zero.is_finished() && start.elapsed() < Duration::from_secs(20) {
                let _ = slow.write_all(b"k");
                std::thread::sleep(Duration::from_millis(50));
            }
            let why = zero.join().unwrap().unwrap_err();
            assert!(why.contains("rank 1 did not come to") && why.contains("within 1 s"), "{why}");
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        });
    }

    #[test]
    fn two_of_one_number_and_other_words_end_the_meeting_for_all() {
        let port = port();
        let all = |who: &[(usize, &'static str)]| {
            std::thread::scope(|scope| {
                let one = |&(rank, word): &(usize, &'static str)| {
                    scope.spawn(move || meets(&ranks(rank, 4, port, "30"), word).unwrap_err())
                };
                let all: Vec<_> = who.iter().map(one).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<String>>()
            })
        };
        for why in all(&[(0, "same"), (1, "same"), (1, "same")]) {
            assert!(why.contains("two processes say that they are rank 1 of 4"), "{why}");
        }
        for why in all(&[(0, "same"), (2, "x\u{1b}[31m")]) {
            assert!(why.contains("rank 2 has another word than rank 0"), "{why}");
            assert!(!why.contains('\u{1b}'), "what another says is shown as it is: {why:?}");
        }
    }
}
