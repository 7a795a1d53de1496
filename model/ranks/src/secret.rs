//! The ranks' shared secret, a text that the launcher gives to all of them. Each side proves that
//! it has the secret before the other side uses its data. The proof does not reveal the secret. It
//! is an HMAC-SHA256 (RFC 2104) over a nonce of the other side.

use crate::error::RanksError;
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Minimum number of characters. A shorter secret could be guessed from an intercepted proof.
const MIN_LENGTH: usize = 16;
/// SHA-256's block size in bytes.
const BLOCK: usize = 64;

/// The secret; `None` if all processes belong to one user on one machine. `Debug` does not print
/// it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Option<Vec<u8>>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A proof: 32 bytes in hex.
pub(crate) type Proof = String;

/// The nonces of both sides for one connection.
#[derive(Clone, Debug)]
pub(crate) struct Nonces {
    /// Nonce of the connecting rank.
    pub theirs: String,
    /// Nonce of rank 0.
    pub first: String,
}

impl Secret {
    /// Reads the value of the variable.
    pub fn of(text: Option<String>) -> Result<Secret, RanksError> {
        match text {
            Some(text) if text.chars().count() < MIN_LENGTH => {
                Err(RanksError::Secret { why: format!("has fewer than {MIN_LENGTH} characters") })
            }
            text => Ok(Secret(text.map(String::into_bytes))),
        }
    }

    /// Proves that the holder of the secret sends `said` in this step of the handshake.
    pub fn proof(&self, part: &str, drawn: &Nonces, said: &str) -> Proof {
        let message = [part, &drawn.theirs, &drawn.first, said].join("\n");
        hex(&hmac(self.0.as_deref().unwrap_or_default(), message.as_bytes()))
    }

    /// Whether a proof is right, compared in constant time.
    pub fn proves(&self, proof: &str, part: &str, drawn: &Nonces, said: &str) -> bool {
        let want = self.proof(part, drawn, said);
        let differ = want.bytes().zip(proof.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
        want.len() == proof.len() && differ == 0
    }

    /// Whether ranks may connect at these addresses. Without a secret, all ranks must be on one
    /// machine.
    pub fn allows(&self, addresses: &[SocketAddr]) -> Result<(), RanksError> {
        match self.0.is_some() || addresses.iter().all(|at| at.ip().is_loopback()) {
            true => Ok(()),
            false => Err(RanksError::Secret {
                why: "is not set, which is allowed only if rank 0 listens on 127.0.0.1".to_owned(),
            }),
        }
    }

    /// Whether the peer of a connection is trusted. Without a secret it must be a process of the
    /// same user or of root. Waits up to `wait` until a program has accepted the connection.
    pub fn trusts(&self, stream: &TcpStream, wait: Duration) -> bool {
        self.0.is_some() || same_user(stream, wait)
    }
}

/// Draws a nonce of 32 random bytes.
pub(crate) fn draw() -> Result<String, RanksError> {
    let mut bytes = [0u8; 32];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|e| {
        RanksError::Meeting(format!("cannot read random numbers (/dev/urandom): {e}"))
    })?;
    Ok(hex(&bytes))
}

/// Whether a text has the format of [`draw`]'s nonces.
pub(crate) fn is_drawn(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let short = if key.len() > BLOCK { Sha256::digest(key).to_vec() } else { key.to_vec() };
    let padded = |with: u8| -> Vec<u8> {
        short
            .iter()
            .copied()
            .chain(std::iter::repeat(0))
            .take(BLOCK)
            .map(|byte| byte ^ with)
            .collect()
    };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().to_vec()
}

/// Whether the peer of a local connection belongs to this user or to root, by the kernel's list of
/// connections.
fn same_user(stream: &TcpStream, wait: Duration) -> bool {
    let (Ok(here), Ok(there)) = (stream.local_addr(), stream.peer_addr()) else { return false };
    let Some(own) = own_user() else { return false };
    let end = Instant::now() + wait;
    loop {
        // The peer's entry in the list. Its local address is `there`, and its remote address is
        // `here`.
        match user_of(there, here) {
            Some(user) => return user == own || user == 0,
            // No program has accepted the connection yet.
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            None => return false,
        }
    }
}

fn own_user() -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").ok().map(|of| of.uid())
}

/// The owner of the connection from `local` to `remote`. `None` if there is no such connection, or
/// no program has accepted it.
fn user_of(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let (local, remote) = (listed(local), listed(remote));
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|list| {
        let text = std::fs::read_to_string(list).ok()?;
        text.lines().find_map(|line| {
            let mut words = line.split_ascii_whitespace().skip(1);
            let is = words.next() == Some(local.as_str()) && words.next() == Some(remote.as_str());
            let (user, file) = is.then(|| (words.nth(4), words.nth(1)))?;
            // A connection that no program has accepted has no inode, and root is listed as its
            // owner.
            user?.parse().ok().filter(|_| file.is_some_and(|file| file != "0"))
        })
    })
}

/// An address as the list prints it: 32-bit words in native byte order, in hex.
fn listed(at: SocketAddr) -> String {
    let bytes = match at.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words =
        bytes.as_chunks::<4>().0.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word)));
    format!("{}:{:04X}", words.collect::<String>(), at.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Test cases 1, 2 and 6 of RFC 4231.
    #[test]
    fn hmac_matches_rfc_4231() {
        for (key, message, want) in [
            (
                vec![0x0b; 20],
                &b"Hi There"[..],
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe".to_vec(),
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                vec![0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ] {
            assert_eq!(hex(&hmac(&key, message)), want);
        }
    }

    #[test]
    fn proof_is_bound_to_connection_role_and_words() {
        let secret = Secret::of(Some("sixteen letters!".to_owned())).unwrap();
        let drawn = Nonces { theirs: draw().unwrap(), first: draw().unwrap() };
        let proof = secret.proof("a", &drawn, "words");
        assert!(secret.proves(&proof, "a", &drawn, "words"));
        let other = Secret::of(Some("sixteen letters?".to_owned())).unwrap();
        let again = Nonces { first: draw().unwrap(), ..drawn.clone() };
        assert!(
            !other.proves(&proof, "a", &drawn, "words")
                && !secret.proves(&proof, "a", &again, "words")
        );
        assert!(
            !secret.proves(&proof, "b", &drawn, "words")
                && !secret.proves(&proof, "a", &drawn, "word")
        );
        assert!(
            !secret.proves(&proof[1..], "a", &drawn, "words")
                && !secret.proves("", "a", &drawn, "words")
        );
        assert!(Secret::of(Some("too short".to_owned())).is_err());
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    #[test]
    fn user_of_tcp_peer_is_found() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            // The machine may lack IPv6.
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert_eq!(
                user_of(ours.peer_addr().unwrap(), ours.local_addr().unwrap()),
                None,
                "no program has accepted the connection"
            );
            let (theirs, _) = listener.accept().unwrap();
            assert!(same_user(&ours, Duration::ZERO) && same_user(&theirs, Duration::ZERO), "{at}");
            assert_eq!(user_of(ours.local_addr().unwrap(), ours.peer_addr().unwrap()), own_user());
        }
    }
}
