//! The part of ZMTP 3.0 (<https://rfc.zeromq.org/spec/23>) that a PUB and a ROUTER socket need,
//! with the mechanism NULL.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum bytes of a peer's message: subscriptions and requests are small.
const MOST: usize = 64 << 10;
/// Maximum number of frames of a peer's message.
const MOST_FRAMES: usize = 16;
const GREETING: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The type of this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketType {
    Pub,
    Router,
}

impl SocketType {
    fn name(self) -> &'static str {
        match self {
            SocketType::Pub => "PUB",
            SocketType::Router => "ROUTER",
        }
    }

    /// The types of peers that this type talks to.
    fn peers(self) -> &'static [&'static [u8]] {
        match self {
            SocketType::Pub => &[b"SUB", b"XSUB"],
            SocketType::Router => &[b"REQ", b"DEALER", b"ROUTER"],
        }
    }
}

/// The next thing that a peer sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// The frames of a message.
    Message(Vec<Vec<u8>>),
    Subscribe(Vec<u8>),
    Cancel(Vec<u8>),
    /// A heartbeat: [`Peer::pong`] answers it.
    Ping(Vec<u8>),
}

/// A connection after its greeting.
pub struct Peer<S> {
    stream: S,
    is: SocketType,
    /// Bytes that were read and not used yet.
    read: Vec<u8>,
    /// The frames before the last one of a message.
    frames: Vec<Vec<u8>>,
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    /// Exchanges greetings and types.
    pub async fn greet(mut stream: S, is: SocketType) -> io::Result<Peer<S>> {
        let mut greeting = [0; GREETING];
        let head = b"\xFF\0\0\0\0\0\0\0\0\x7F\x03\0NULL";
        greeting.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
        stream.write_all(&greeting).await?;
        let mut theirs = [0; GREETING];
        stream.read_exact(&mut theirs).await?;
        let mut mechanism = [0; 20];
        mechanism.iter_mut().zip(b"NULL").for_each(|(to, from)| *to = *from);
        let [0xFF, _, _, _, _, _, _, _, _, signature, major, _, rest @ ..] = theirs else {
            return Err(wrong("the peer does not speak ZMTP"));
        };
        if signature & 1 == 0 || major < 3 || !rest.starts_with(&mechanism) {
            return Err(wrong("the peer does not speak ZMTP 3 with the mechanism NULL"));
        }
        let mut peer = Peer { stream, is, read: vec![], frames: vec![] };
        let mut ready = b"\x05READY\x0BSocket-Type".to_vec();
        ready.extend((is.name().len() as u32).to_be_bytes());
        ready.extend(is.name().as_bytes());
        peer.write(COMMAND, &ready).await?;
        let (flags, body) = loop {
            match peer.frame()? {
                Some(frame) => break frame,
                None => peer.more().await?,
            }
        };
        let of = body.strip_prefix(b"\x05READY").filter(|_| flags & COMMAND != 0);
        let of = of.and_then(|properties| property(properties, b"socket-type"));
        match of.is_some_and(|of| is.peers().contains(&of)) {
            true => Ok(peer),
            false => Err(wrong("the peer's socket has an unsuitable type")),
        }
    }

    /// The next message or command. Can be cancelled without losing bytes.
    pub async fn receive(&mut self) -> io::Result<Received> {
        loop {
            let Some((flags, body)) = self.frame()? else {
                self.more().await?;
                continue;
            };
            if flags & COMMAND != 0 {
                match command(&body) {
                    Some(received) => return Ok(received),
                    None => continue,
                }
            }
            self.frames.push(body);
            let bytes: usize = self.frames.iter().map(Vec::len).sum();
            if self.frames.len() > MOST_FRAMES || bytes > MOST {
                return Err(wrong("the message is too long"));
            }
            if flags & MORE != 0 {
                continue;
            }
            let frames = std::mem::take(&mut self.frames);
            return Ok(match (self.is, frames.as_slice()) {
                (SocketType::Pub, [one]) => match one.split_first() {
                    Some((1, topic)) => Received::Subscribe(topic.to_vec()),
                    Some((0, topic)) => Received::Cancel(topic.to_vec()),
                    _ => Received::Message(frames),
                },
                _ => Received::Message(frames),
            });
        }
    }

    /// Sends a message of these frames.
    pub async fn send(&mut self, frames: &[&[u8]]) -> io::Result<()> {
        let mut out = vec![];
        for (i, frame) in frames.iter().enumerate() {
            put(&mut out, if i + 1 < frames.len() { MORE } else { 0 }, frame);
        }
        self.stream.write_all(&out).await
    }

    /// Answers a heartbeat.
    pub async fn pong(&mut self, context: &[u8]) -> io::Result<()> {
        self.write(COMMAND, &[b"\x04PONG", context].concat()).await
    }

    async fn write(&mut self, flags: u8, body: &[u8]) -> io::Result<()> {
        let mut out = vec![];
        put(&mut out, flags, body);
        self.stream.write_all(&out).await
    }

    /// Reads some bytes.
    async fn more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Takes a frame from the bytes that were read: its flags and its body.
    fn frame(&mut self) -> io::Result<Option<(u8, Vec<u8>)>> {
        let (flags, len, head) = match self.read.as_slice() {
            [flags, len @ ..] if flags & LONG != 0 => match len.first_chunk::<8>() {
                Some(len) => (*flags, u64::from_be_bytes(*len), 9),
                None => return Ok(None),
            },
            [flags, len, ..] => (*flags, u64::from(*len), 2),
            _ => return Ok(None),
        };
        let len = usize::try_from(len).ok().filter(|len| *len <= MOST);
        let len = len.ok_or_else(|| wrong("the message is too long"))?;
        if self.read.len() < head + len {
            return Ok(None);
        }
        let body = self.read.drain(..head + len).skip(head).collect();
        Ok(Some((flags, body)))
    }
}

fn put(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(len) => out.extend([flags, len]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

/// The value of a property. Names are compared without case.
fn property<'a>(mut properties: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (len, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*len))?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        properties = rest;
    }
}

/// A command of ZMTP 3.1. Unknown commands are ignored.
fn command(body: &[u8]) -> Option<Received> {
    let of = |name: &[u8]| body.strip_prefix(name).map(<[u8]>::to_vec);
    of(b"\x09SUBSCRIBE")
        .map(Received::Subscribe)
        .or_else(|| of(b"\x06CANCEL").map(Received::Cancel))
        // A heartbeat has a time of 2 bytes before its context.
        .or_else(|| of(b"\x04PING").map(|rest| Received::Ping(rest.into_iter().skip(2).collect())))
}

#[cfg(test)]
pub(super) mod tests {
    use super::{COMMAND, Peer, Received, SocketType, put};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    /// The greeting and type of a peer.
    pub fn hello(kind: &str) -> Vec<u8> {
        let mut all = b"\xFF\0\0\0\0\0\0\0\x01\x7F\x03\x01NULL".to_vec();
        all.resize(64, 0);
        let mut ready = b"\x05READY\x08Identity\0\0\0\0\x0Bsocket-type".to_vec();
        ready.extend((kind.len() as u32).to_be_bytes());
        ready.extend(kind.as_bytes());
        put(&mut all, COMMAND, &ready);
        all
    }

    async fn greeted(
        is: SocketType,
        hello: &[u8],
    ) -> std::io::Result<(Peer<DuplexStream>, DuplexStream)> {
        let (mut far, near) = duplex(1 << 16);
        far.write_all(hello).await.unwrap();
        Ok((Peer::greet(near, is).await?, far))
    }

    pub fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn peers_of_unsuitable_types_and_other_protocols_are_refused() {
        block_on(async {
            for (is, kind, good) in [
                (SocketType::Pub, "SUB", true),
                (SocketType::Pub, "XSUB", true),
                (SocketType::Pub, "REQ", false),
                (SocketType::Router, "DEALER", true),
                (SocketType::Router, "SUB", false),
            ] {
                assert_eq!(greeted(is, &hello(kind)).await.is_ok(), good, "{is:?} {kind}");
            }
            let mut http = b"GET / HTTP/1.1\r\n".to_vec();
            http.resize(200, b' ');
            let mut curve = hello("SUB");
            curve[12..17].copy_from_slice(b"CURVE");
            let mut long = hello("SUB");
            long.truncate(64);
            long.extend([COMMAND | 2, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0]);
            for bytes in [http, curve, long] {
                assert!(greeted(SocketType::Pub, &bytes).await.is_err());
            }
        });
    }

    #[test]
    fn messages_are_read_in_any_pieces_and_written_in_frames() {
        block_on(async {
            let (mut peer, mut far) = greeted(SocketType::Pub, &hello("SUB")).await.unwrap();
            let mut all = vec![];
            put(&mut all, 0, b"\x01kv@");
            put(&mut all, COMMAND, b"\x09SUBSCRIBEmore");
            put(&mut all, COMMAND, b"\x07UNKNOWN");
            put(&mut all, COMMAND, b"\x04PING\0\x05ctx");
            put(&mut all, 0, b"\x00kv@");
            put(&mut all, 1, &[]);
            put(&mut all, 0, &[7; 300]);
            let writer = tokio::spawn(async move {
                for byte in all {
                    far.write_all(&[byte]).await.unwrap();
                    tokio::task::yield_now().await;
                }
                far
            });
            for wanted in [
                Received::Subscribe(b"kv@".to_vec()),
                Received::Subscribe(b"more".to_vec()),
                Received::Ping(b"ctx".to_vec()),
                Received::Cancel(b"kv@".to_vec()),
                Received::Message(vec![vec![], vec![7; 300]]),
            ] {
                assert_eq!(peer.receive().await.unwrap(), wanted);
            }
            let mut far = writer.await.unwrap();
            peer.send(&[b"topic", &[0; 8], &[9; 256]]).await.unwrap();
            peer.pong(b"ctx").await.unwrap();
            drop(peer);
            let mut got = vec![];
            far.read_to_end(&mut got).await.unwrap();
            let mut wanted = vec![];
            put(&mut wanted, COMMAND, b"\x05READY\x0BSocket-Type\0\0\0\x03PUB");
            wanted.extend(b"\x01\x05topic\x01\x08\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\x01\0");
            wanted.extend([9; 256]);
            wanted.extend(b"\x04\x08\x04PONGctx");
            assert_eq!(&got[64..], wanted);
            assert_eq!(got[..16], *b"\xFF\0\0\0\0\0\0\0\0\x7F\x03\0NULL");
        });
    }
}
