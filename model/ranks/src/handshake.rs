//! The ranks' handshake. All other ranks connect to rank 0, prove that they have the secret, send
//! what they compute, and receive the id of the vendor's library. The connections stay open. They
//! are closed when a rank ends.
//!
//! ```text
//! rank → first   kjit-rank-3 DRAWN
//! first → rank   DRAWN PROOF
//! rank → first   PROOF RANK JOB WORDS…     accepted if the proof is for these words
//! first → rank   PROOF go BYTES, or PROOF no WHY
//! ```

use super::secret::{Nonces, draw, is_drawn};
use super::{Ranks, SECRET};
use crate::error::RanksError;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// First word of a rank's first line.
const WORD: &str = "kjit-rank-3";
/// Maximum bytes of a line.
const LINE: usize = 4096;
/// Time limit for a whole line of a peer.
const LINE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of connections without a proof. Above it, the oldest connection is closed.
const UNKNOWN: usize = 64;
/// Maximum number of characters of a peer's text in messages.
const MAX_SHOWN: usize = 400;

/// Facts that must be equal in all ranks, as words without spaces. An error names the fact that
/// differs.
pub type Hello = Vec<(&'static str, String)>;

/// Connections by rank, and a warning about the address. Rank 0 has connections to all ranks. The
/// other ranks have a connection only to rank 0.
#[derive(Debug)]
pub struct RankConnections(pub Vec<(usize, TcpStream)>, pub Option<String>);

impl RankConnections {
    /// The first rank whose connection has ended.
    pub fn gone(&self) -> Option<usize> {
        self.0.iter().find(|(_, stream)| ended(stream)).map(|(rank, _)| *rank)
    }
}

/// Whether a non-blocking connection has ended: closed, reset or failed.
fn ended(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(n) => n == 0,
        Err(e) => !waits(&e),
    }
}

fn waits(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted)
}

/// Text from the network that is safe to print: no control characters, limited length.
fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Connects the ranks. Returns the bytes that rank 0 sends to all, and the connections.
pub fn handshake(
    ranks: &Ranks,
    hello: &Hello,
    first: impl FnOnce() -> Result<Vec<u8>, RanksError>,
) -> Result<(Vec<u8>, RankConnections), RanksError> {
    let (bytes, links) = match ranks.rank {
        0 => gather(ranks, hello, first)?,
        _ => join(ranks, hello)?,
    };
    for (_, stream) in &links.0 {
        let set = stream.set_read_timeout(None).and_then(|()| stream.set_nonblocking(true));
        set.and_then(|()| stream.set_nodelay(true))
            .map_err(|e| handshake_error(format!("a connection: {e}")))?;
    }
    Ok((bytes, links))
}

fn handshake_error(why: String) -> RanksError {
    RanksError::Meeting(why)
}

fn place(ranks: &Ranks) -> String {
    format!("{}:{}", ranks.host, ranks.port)
}

fn rank_list(all: &[usize]) -> String {
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    format!("{} {}", if all.len() == 1 { "rank" } else { "ranks" }, all.join(", "))
}

/// A connected peer without a proof.
struct Unknown {
    stream: TcpStream,
    line: Vec<u8>,
    since: Instant,
    /// The nonces of both sides, after the first line.
    drawn: Option<Nonces>,
}

/// A rank that has proven itself, with the nonces.
struct VerifiedRank {
    rank: usize,
    stream: TcpStream,
    drawn: Nonces,
}

impl VerifiedRank {
    /// Sends a line with its proof.
    fn tell(&mut self, ranks: &Ranks, what: &str) -> std::io::Result<()> {
        tell(&mut self.stream, ranks, &self.drawn, what)
    }
}

/// The step that a proof belongs to. A proof of one step is invalid in any other step.
mod part {
    pub const FIRST: &str = "the first rank";
    pub const RANK: &str = "a rank";
    pub const ANSWER: &str = "the answer";
}

fn tell(stream: &mut TcpStream, ranks: &Ranks, drawn: &Nonces, what: &str) -> std::io::Result<()> {
    let proof = ranks.secret.proof(part::ANSWER, drawn, what);
    stream.write_all(format!("{proof} {what}\n").as_bytes())
}

impl Unknown {
    /// The peer's line with a valid proof, if it has arrived. An error rejects the peer.
    fn proven(&mut self, ranks: &Ranks) -> Result<Option<(Nonces, String)>, ()> {
        let Some(line) = self.line()? else { return Ok(None) };
        let Some(drawn) = &self.drawn else {
            let theirs = line
                .strip_prefix(WORD)
                .and_then(|rest| rest.strip_prefix(' '))
                .filter(|d| is_drawn(d));
            let drawn =
                Nonces { theirs: theirs.ok_or(())?.to_owned(), first: draw().map_err(|_| ())? };
            let proof = ranks.secret.proof(part::FIRST, &drawn, "");
            // A line this short fits into the buffer of any connection.
            self.stream
                .write_all(format!("{} {proof}\n", drawn.first).as_bytes())
                .map_err(|_| ())?;
            (self.drawn, self.line) = (Some(drawn), vec![]);
            return Ok(None);
        };
        let (proof, said) = line.split_once(' ').ok_or(())?;
        match ranks.secret.proves(proof, part::RANK, drawn, said) {
            true => Ok(Some((drawn.clone(), said.to_owned()))),
            false => Err(()),
        }
    }

    /// The peer's line, if it is complete. An error rejects the peer.
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
        // A rank sends nothing after its line before it gets the answer.
        match self.line.strip_suffix(b"\n") {
            Some(line) => String::from_utf8(line.to_vec()).map(Some).map_err(|_| ()),
            None if self.since.elapsed() > LINE_TIMEOUT => Err(()),
            None => Ok(None),
        }
    }
}

/// Opens rank 0's listener. Returns it with a warning about its address.
fn listen(ranks: &Ranks) -> Result<(TcpListener, Option<String>), RanksError> {
    let failed = |e: &std::io::Error| {
        handshake_error(format!("rank 0 cannot listen at {}: {e}", place(ranks)))
    };
    let everywhere = |why: String| {
        ranks.secret.allows(&[SocketAddr::from(([0, 0, 0, 0], ranks.port))])?;
        let listener = TcpListener::bind(("0.0.0.0", ranks.port));
        let listener = listener.map_err(|e| {
            handshake_error(format!(
                "rank 0 cannot listen at {}: {why}, and at all addresses: {e}",
                place(ranks)
            ))
        })?;
        Ok((
            listener,
            Some(format!(
                "{why}: rank 0 listens at all addresses of its machine, port {}",
                ranks.port
            )),
        ))
    };
    // The name may become resolvable only after the start. The other ranks wait for that as well. A
    // name that never resolves is an error; it does not mean "all addresses".
    let end = Instant::now() + ranks.wait;
    let mut all: Vec<SocketAddr> = loop {
        match (&*ranks.host, ranks.port).to_socket_addrs() {
            Ok(all) => break all.collect(),
            Err(e) if Instant::now() > end => {
                let (host, seconds) = (shown(&ranks.host), ranks.wait.as_secs());
                return Err(handshake_error(format!(
                    "MASTER_ADDR={host} cannot be resolved on this machine within {seconds} s ({e})"
                )));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    // Debian maps a machine's own name to 127.0.1.1, which other machines cannot reach. An IP
    // address and localhost are used unchanged.
    let meant = ranks.host == "localhost" || ranks.host.parse::<std::net::IpAddr>().is_ok();
    // The first address that can be bound is used. Loopback addresses are skipped.
    if !meant {
        all.retain(|at| !at.ip().is_loopback());
    }
    if all.is_empty() {
        return everywhere(format!("{} has only loopback addresses", shown(&ranks.host)));
    }
    ranks.secret.allows(&all)?;
    match TcpListener::bind(&*all) {
        Ok(listener) => Ok((listener, None)),
        // An indirect name, such as the name of a service, cannot be bound.
        Err(e) if e.kind() == std::io::ErrorKind::AddrNotAvailable => {
            everywhere(format!("{} is not an address of this machine ({e})", shown(&ranks.host)))
        }
        Err(e) => Err(failed(&e)),
    }
}

/// Rank 0's part of the handshake.
fn gather(
    ranks: &Ranks,
    hello: &Hello,
    first: impl FnOnce() -> Result<Vec<u8>, RanksError>,
) -> Result<(Vec<u8>, RankConnections), RanksError> {
    let (listener, said) = listen(ranks)?;
    let set = listener.set_nonblocking(true);
    set.map_err(|e| handshake_error(format!("rank 0 cannot listen at {}: {e}", place(ranks))))?;
    let end = Instant::now() + ranks.wait;
    let mut came: Vec<VerifiedRank> = vec![];
    // Number of rejected connections.
    let mut strangers = 0usize;
    let mut unknown: Vec<Unknown> = vec![];
    while came.len() + 1 < ranks.size {
        if let Some(gone) = came.iter().find(|known| ended(&known.stream)) {
            let why = format!("rank {} has ended before all had connected", gone.rank);
            return refuse(ranks, came, why);
        }
        if Instant::now() > end {
            let missing: Vec<usize> =
                (1..ranks.size).filter(|r| came.iter().all(|known| known.rank != *r)).collect();
            let (who, seconds) = (rank_list(&missing), ranks.wait.as_secs());
            let mut said = said.map_or_else(String::new, |said| format!(" ({said})"));
            if strangers > 0 {
                said += &format!(
                    " ({strangers} connections had no valid proof: set the same {SECRET} for all \
                     ranks)"
                );
            }
            return refuse(
                ranks,
                came,
                format!("{who} did not connect to {} within {seconds} s{said}", place(ranks)),
            );
        }
        match listener.accept() {
            Ok((stream, _)) if !ranks.secret.trusts(&stream, Duration::ZERO) => drop(stream),
            Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                if unknown.len() == UNKNOWN {
                    unknown.remove(0);
                }
                unknown.push(Unknown { stream, line: vec![], since: Instant::now(), drawn: None });
            }
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
        for mut who in std::mem::take(&mut unknown) {
            match who.proven(ranks) {
                Ok(Some((drawn, line))) => {
                    if let Some(why) = welcome(ranks, hello, &line, (who.stream, drawn), &mut came)
                    {
                        return refuse(ranks, came, why);
                    }
                }
                Ok(None) => unknown.push(who),
                // A peer that is not a rank sends other data, or none.
                Err(()) => strangers += 1,
            }
        }
    }
    let bytes = match first() {
        Ok(bytes) => bytes,
        Err(error) => return refuse(ranks, came, error.to_string()),
    };
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    for known in &mut came {
        let sent = known.tell(ranks, &format!("go {hex}"));
        sent.map_err(|e| handshake_error(format!("sending to rank {} failed: {e}", known.rank)))?;
    }
    came.sort_by_key(|known| known.rank);
    Ok((
        bytes,
        RankConnections(came.into_iter().map(|known| (known.rank, known.stream)).collect(), said),
    ))
}

/// Accepts or rejects a peer with a proven line. Returns the reason if the handshake fails as a
/// whole.
fn welcome(
    ranks: &Ranks,
    hello: &Hello,
    line: &str,
    (mut stream, drawn): (TcpStream, Nonces),
    came: &mut Vec<VerifiedRank>,
) -> Option<String> {
    let mut words = line.split(' ');
    let (rank, job) = (words.next().and_then(|w| w.parse::<usize>().ok()), words.next());
    let mut away = |why: String| {
        // The peer may have closed the connection.
        let _ = tell(&mut stream, ranks, &drawn, &format!("no {why}"));
    };
    if job != Some(&*ranks.job) {
        // Another job on this machine uses this port. Neither job fails because of this connection.
        away(format!(
            "rank 0 of another job listens at {}: set a different MASTER_PORT for each job",
            place(ranks)
        ));
        return None;
    }
    let Some(rank) = rank.filter(|rank| *rank > 0) else {
        away("the rank must be a number above 0".to_owned());
        return None;
    };
    let theirs: Vec<&str> = words.collect();
    let differs = hello.iter().enumerate().find(|(i, (_, ours))| theirs.get(*i) != Some(&&**ours));
    if let Some((i, (what, ours))) = differs {
        let theirs = shown(theirs.get(i).copied().unwrap_or("none"));
        came.push(VerifiedRank { rank, stream, drawn });
        return Some(format!("rank {rank} and rank 0 differ in {what} ({theirs} and {ours})"));
    }
    if rank >= ranks.size {
        away(format!(
            "rank {rank} is out of range: the job has {} ranks, counted from 0",
            ranks.size
        ));
        return None;
    }
    let twice = came.iter().any(|other| other.rank == rank);
    came.push(VerifiedRank { rank, stream, drawn });
    twice.then(|| format!("two processes say that they are rank {rank} of {}", ranks.size))
}

/// Sends all ranks a message that the handshake failed.
fn refuse<T>(ranks: &Ranks, came: Vec<VerifiedRank>, why: String) -> Result<T, RanksError> {
    for mut known in came {
        // The peer may have closed the connection.
        let _ = known.tell(ranks, &format!("no {why}"));
    }
    Err(handshake_error(why))
}

/// The handshake of every other rank.
fn join(ranks: &Ranks, hello: &Hello) -> Result<(Vec<u8>, RankConnections), RanksError> {
    let end = Instant::now() + ranks.wait;
    let seconds = ranks.wait.as_secs();
    let mut stream = loop {
        // The name may become resolvable only when rank 0 runs.
        let all = (&*ranks.host, ranks.port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        if let Ok(all) = &all {
            ranks.secret.allows(all)?;
        }
        let connected = all.and_then(|all| {
            let mut last = Err(std::io::Error::other("it has no address"));
            // There is only one connection: rank 0 would treat a second connection as a second
            // process.
            for at in &all {
                last = TcpStream::connect_timeout(at, LINE_TIMEOUT);
                if last.is_ok() {
                    break;
                }
            }
            last
        });
        match connected {
            Ok(stream) => break stream,
            Err(e) if Instant::now() > end => {
                return Err(handshake_error(format!(
                    "rank 0 did not listen at {} within {seconds} s ({e})",
                    place(ranks)
                )));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    let stranger = || {
        handshake_error(format!(
            "the process that listens at {} does not belong to this job, \
             or has a different {SECRET}",
            place(ranks)
        ))
    };
    if !ranks.secret.trusts(&stream, LINE_TIMEOUT) {
        return Err(stranger());
    }
    let silent = |e: std::io::Error| {
        handshake_error(format!("rank 0 did not answer at {} ({e})", place(ranks)))
    };
    // Rank 0 waits for the others for the same time, and then reports the reason.
    let wait = ranks.wait + LINE_TIMEOUT;
    let until = Instant::now() + wait;
    let theirs = draw()?;
    let said = stream
        .write_all(format!("{WORD} {theirs}\n").as_bytes())
        .and_then(|()| line(&mut stream, until));
    let said = said.map_err(silent)?;
    let (first, proof) =
        said.split_once(' ').filter(|(first, _)| is_drawn(first)).ok_or_else(stranger)?;
    let drawn = Nonces { theirs, first: first.to_owned() };
    if !ranks.secret.proves(proof, part::FIRST, &drawn, "") {
        return Err(stranger());
    }
    let words: Vec<&str> = hello.iter().map(|(_, said)| &**said).collect();
    let said = format!("{} {} {}", ranks.rank, ranks.job, words.join(" "));
    let proof = ranks.secret.proof(part::RANK, &drawn, &said);
    let answer = stream
        .write_all(format!("{proof} {said}\n").as_bytes())
        .and_then(|()| line(&mut stream, until));
    let answer = answer.map_err(silent)?;
    let (proof, answer) = answer.split_once(' ').ok_or_else(stranger)?;
    if !ranks.secret.proves(proof, part::ANSWER, &drawn, answer) {
        return Err(stranger());
    }
    match answer.split_once(' ') {
        Some(("go", hex)) => {
            let byte = |i: usize| {
                hex.get(2 * i..2 * i + 2).and_then(|two| u8::from_str_radix(two, 16).ok())
            };
            let bytes: Option<Vec<u8>> = (0..hex.len() / 2).map(byte).collect();
            let bytes = bytes.ok_or_else(|| {
                handshake_error("rank 0 sent an id that is not hexadecimal".to_owned())
            })?;
            Ok((bytes, RankConnections(vec![(0, stream)], None)))
        }
        Some(("no", why)) => Err(handshake_error(shown(why))),
        _ => Err(stranger()),
    }
}

/// Reads a line, without its end, until a deadline. It reads byte by byte, because later bytes do
/// not belong to the line.
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
    Err(std::io::Error::other("the line has no end"))
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

    /// An unused port.
    fn port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    fn handshake_result(ranks: &Ranks, what: &str) -> Result<Vec<u8>, String> {
        let met = handshake(ranks, &vec![("word", what.to_owned())], || Ok(vec![1, 2, 255]));
        met.map(|(bytes, links)| {
            assert_eq!(links.0.len(), if ranks.rank == 0 { ranks.size - 1 } else { 1 });
            bytes
        })
        .map_err(|e| e.to_string())
    }

    /// A peer that connects when the port is open, and sends these words.
    fn connect_and_send(port: u16, words: &str) -> TcpStream {
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

    fn short_deadline() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    /// A peer that sends the first line of a rank.
    fn connect_with_first_line(port: u16) -> (TcpStream, Nonces) {
        let theirs = draw().unwrap();
        let mut stream = connect_and_send(port, &format!("{WORD} {theirs}\n"));
        let answer = line(&mut stream, short_deadline()).unwrap();
        let first = answer.split(' ').next().unwrap().to_owned();
        (stream, Nonces { theirs, first })
    }

    fn at(rank: usize, host: &str, port: u16, secret: Option<&str>) -> Ranks {
        let value = |name: &str| match name {
            "RANK" => Some(rank.to_string()),
            "WORLD_SIZE" => Some("2".to_owned()),
            "MASTER_ADDR" => Some(host.to_owned()),
            "MASTER_PORT" => Some(port.to_string()),
            "KJIT_RANKS_WAIT" => Some("1".to_owned()),
            SECRET => secret.map(str::to_owned),
            _ => None,
        };
        Ranks::of(&value).unwrap()
    }

    #[test]
    fn secret_is_required_and_unresolvable_host_is_refused() {
        // A name without an address does not mean all addresses.
        for rank in [0, 1] {
            let why = handshake_result(
                &at(rank, "no-such-host.invalid", port(), Some("sixteen letters!")),
                "same",
            )
            .unwrap_err();
            assert!(why.contains("no-such-host.invalid"), "{why}");
        }
        // A secret is required if other machines can connect.
        for (rank, host) in [(0, "0.0.0.0"), (1, "192.0.2.1"), (0, "192.0.2.1")] {
            let why = handshake_result(&at(rank, host, port(), None), "same").unwrap_err();
            assert!(why.contains("KJIT_RANKS_SECRET is not set"), "{host}: {why}");
        }
        // The secret must be the same on both sides.
        for (ours, theirs, good) in [
            (Some("sixteen letters!"), Some("sixteen letters!"), true),
            (Some("sixteen letters!"), Some("sixteen letters?"), false),
            (Some("sixteen letters!"), None, false),
            (None, Some("sixteen letters?"), false),
        ] {
            let port = port();
            let [zero, one] = std::thread::scope(|scope| {
                let both = [(0, ours), (1, theirs)];
                let both = both.map(|(rank, s)| {
                    scope.spawn(move || handshake_result(&at(rank, "127.0.0.1", port, s), "same"))
                });
                both.map(|one| one.join().unwrap())
            });
            assert_eq!((zero.is_ok(), one.is_ok()), (good, good), "{zero:?} {one:?}");
            if let (Err(zero), Err(one)) = (zero, one) {
                assert!(
                    zero.contains("rank 1 did not connect")
                        && one.contains("a different KJIT_RANKS_SECRET"),
                    "{zero} {one}"
                );
            }
        }
    }

    #[test]
    fn ranks_connect_despite_foreign_connections() {
        let port = port();
        std::thread::scope(|scope| {
            let zero = scope.spawn(|| handshake_result(&ranks(0, 3, port, "30"), "same"));
            // An HTTP client, a rank of an older protocol, a rank without a nonce, an unfinished
            // line, silence.
            let words = [
                "GET / HTTP/1.1\r\n\r\n",
                "kjit-rank-2 1 - same\n",
                "kjit-rank-3 12\n",
                "kjit-rank-3 1",
                "",
            ];
            let _strangers = words.map(|words| connect_and_send(port, words));
            for (words, told) in [
                ("1 other same", "of another job"),
                ("x - same", "above 0"),
                ("7 - same", "out of range: the job has 3 ranks"),
            ] {
                let ours = ranks(1, 3, port, "30");
                let (mut stream, drawn) = connect_with_first_line(port);
                let proof = ours.secret.proof(part::RANK, &drawn, words);
                stream.write_all(format!("{proof} {words}\n").as_bytes()).unwrap();
                let answer = line(&mut stream, short_deadline()).unwrap();
                assert!(answer.contains(" no ") && answer.contains(told), "{answer}");
            }
            // A proof of a different text, and a proof of a different step.
            for (part, words) in [(part::RANK, "2 - same"), (part::FIRST, "1 - same")] {
                let (mut stream, drawn) = connect_with_first_line(port);
                let proof = ranks(1, 3, port, "30").secret.proof(part, &drawn, words);
                stream.write_all(format!("{proof} 1 - same\n").as_bytes()).unwrap();
                assert!(line(&mut stream, short_deadline()).is_err(), "{part}");
            }
            let others = [1, 2].map(|rank| {
                scope.spawn(move || handshake_result(&ranks(rank, 3, port, "30"), "same"))
            });
            let all = [zero].into_iter().chain(others).map(|one| one.join().unwrap());
            all.for_each(|met| assert_eq!(met, Ok(vec![1, 2, 255])));
        });
    }

    #[test]
    fn slow_connection_does_not_block_rank_zero() {
        let port = port();
        std::thread::scope(|scope| {
            let start = Instant::now();
            let zero = scope.spawn(|| handshake_result(&ranks(0, 2, port, "1"), "same"));
            let mut slow = connect_and_send(port, "k");
            while !zero.is_finished() && start.elapsed() < Duration::from_secs(20) {
                let _ = slow.write_all(b"k");
                std::thread::sleep(Duration::from_millis(50));
            }
            let why = zero.join().unwrap().unwrap_err();
            assert!(
                why.contains("rank 1 did not connect to") && why.contains("within 1 s"),
                "{why}"
            );
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        });
    }

    #[test]
    fn duplicate_rank_or_different_arguments_abort_all_ranks() {
        let port = port();
        let all = |who: &[(usize, &'static str)]| {
            std::thread::scope(|scope| {
                let one = |&(rank, word): &(usize, &'static str)| {
                    scope.spawn(move || {
                        handshake_result(&ranks(rank, 4, port, "30"), word).unwrap_err()
                    })
                };
                let all: Vec<_> = who.iter().map(one).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<String>>()
            })
        };
        for why in all(&[(0, "same"), (1, "same"), (1, "same")]) {
            assert!(why.contains("two processes say that they are rank 1 of 4"), "{why}");
        }
        for why in all(&[(0, "same"), (2, "x\u{1b}[31m")]) {
            assert!(why.contains("rank 2 and rank 0 differ in word"), "{why}");
            assert!(
                !why.contains('\u{1b}'),
                "the text of a peer is shown without escaping: {why:?}"
            );
        }
    }
}
