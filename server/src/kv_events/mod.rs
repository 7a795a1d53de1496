//! KV events as vLLM publishes them: a ZeroMQ PUB socket sends which blocks of keys and values are
//! cached, and a ROUTER socket repeats batches that a router missed. A message has three frames:
//! topic, sequence number (8 bytes, big-endian), batch (msgpack).

mod batch;
mod zmtp;

use batch::{encode, encoded_cleared};
use kjit_model::serve::{BlockEvent, BlockSink};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, broadcast};
use tokio::time::{sleep, timeout};
use zmtp::{Peer, Received, SocketType};

/// Maximum bytes of events that wait for the publishing task. Above it, the batch says that no
/// block is cached: routers then know too little, but nothing that is wrong.
const MOST_PENDING: usize = 16 << 20;
/// Maximum number of batches, and of their bytes, that can be repeated.
const REPEATABLE: (usize, usize) = (10_000, 64 << 20);
/// Numbers of batches that wait for a slow subscriber. It misses more, as with any PUB socket.
const WAITING: usize = 1_000;
/// Maximum number of connections of each socket.
const CONNECTIONS: usize = 64;
/// Maximum number of topics of a subscriber, and bytes of each.
const TOPICS: (usize, usize) = (256, 1024);
/// Time limit of a greeting, of a request, and of a peer that does not read.
const PATIENCE: Duration = Duration::from_secs(30);

/// An address to listen on, in ZeroMQ's form: `tcp://HOST:PORT`. `*` means all addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint(SocketAddr);

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        let wanted = "give tcp://ADDRESS:PORT, such as tcp://127.0.0.1:5557 or tcp://*:5557";
        let rest = text.strip_prefix("tcp://").ok_or(wanted)?;
        let address = match rest.strip_prefix("*:") {
            Some(port) => port.parse().ok().map(|port| SocketAddr::from(([0, 0, 0, 0], port))),
            None => rest.replace("localhost:", "127.0.0.1:").parse().ok(),
        };
        address.map(Endpoint).ok_or_else(|| wanted.to_owned())
    }
}

/// The publisher of a server's KV events.
pub struct KvEvents {
    endpoint: Endpoint,
    replay: Option<Endpoint>,
    topic: String,
    state: Mutex<State>,
    /// Tells the publishing task that events are pending.
    news: Notify,
}

struct State {
    /// Encoded events, and their bytes.
    pending: Vec<Vec<u8>>,
    pending_bytes: usize,
    /// The number of the next batch.
    next: u64,
    /// Batches that can be repeated, and their bytes.
    sent: VecDeque<Batch>,
    sent_bytes: usize,
}

/// A numbered batch.
#[derive(Clone)]
struct Batch {
    number: u64,
    payload: Arc<[u8]>,
}

impl KvEvents {
    /// A publisher on this endpoint. `replay` is where missed batches can be requested.
    pub fn new(endpoint: Endpoint, replay: Option<Endpoint>, topic: String) -> KvEvents {
        let state = State {
            pending: vec![],
            pending_bytes: 0,
            next: 0,
            sent: VecDeque::new(),
            sent_bytes: 0,
        };
        KvEvents { endpoint, replay, topic, state: Mutex::new(state), news: Notify::new() }
    }

    /// A sink for the scheduler's events. `medium` is where the blocks are, in vLLM's words.
    pub(crate) fn sink(self: &Arc<KvEvents>, medium: &'static str) -> BlockSink {
        let events = Arc::clone(self);
        Arc::new(move |event| events.add(&event, medium))
    }

    fn add(&self, event: &BlockEvent, medium: &str) {
        let event = encode(event, medium);
        let mut state = self.state();
        state.pending_bytes += event.len();
        state.pending.push(event);
        if state.pending_bytes > MOST_PENDING {
            state.pending = vec![encoded_cleared()];
            state.pending_bytes = 0;
        }
        drop(state);
        self.news.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the pending events as the next batch.
    fn next_batch(&self) -> Option<Batch> {
        let mut state = self.state();
        let pending = std::mem::take(&mut state.pending);
        state.pending_bytes = 0;
        if pending.is_empty() {
            return None;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        let batch = Batch { number: state.next, payload: batch::batch(now, &pending).into() };
        state.next += 1;
        state.sent_bytes += batch.payload.len();
        state.sent.push_back(batch.clone());
        while state.sent.len() > REPEATABLE.0 || state.sent_bytes > REPEATABLE.1 {
            let Some(oldest) = state.sent.pop_front() else { break };
            state.sent_bytes -= oldest.payload.len();
        }
        Some(batch)
    }

    /// The batch with this number, if it can be repeated.
    fn sent(&self, number: u64) -> Option<Batch> {
        let state = self.state();
        let first = state.sent.front()?.number;
        state.sent.get(usize::try_from(number.checked_sub(first)?).ok()?).cloned()
    }

    /// Opens the sockets and publishes until the runtime ends.
    ///
    /// # Errors
    /// The address that is in use or does not belong to this machine.
    pub(crate) async fn begin(
        self: &Arc<KvEvents>,
        say: fn(&str),
    ) -> Result<(), (SocketAddr, io::Error)> {
        let Endpoint(address) = self.endpoint;
        let publish = TcpListener::bind(address).await.map_err(|e| (address, e))?;
        let here = publish.local_addr().map_err(|e| (address, e))?;
        let mut line = format!("KV events on tcp://{here}");
        let (batches, _) = broadcast::channel(WAITING);
        if let Some(Endpoint(address)) = self.replay {
            let replay = TcpListener::bind(address).await.map_err(|e| (address, e))?;
            let here = replay.local_addr().map_err(|e| (address, e))?;
            line += &format!(", repeated on tcp://{here}");
            let events = Arc::clone(self);
            tokio::spawn(accept(replay, move |stream| {
                let events = Arc::clone(&events);
                async move { events.repeat(stream).await }
            }));
        }
        let all = [Some(self.endpoint), self.replay];
        let any = |is: fn(&SocketAddr) -> bool| all.iter().flatten().any(|Endpoint(at)| is(at));
        if any(|at| !at.ip().is_loopback()) {
            say(&format!(
                "warning: {line}: everyone who can reach the address reads the token ids of all \
                 prompts"
            ));
        } else if any(|at| at.port() == 0) {
            say(&line);
        }
        let (events, sender) = (Arc::clone(self), batches.clone());
        tokio::spawn(accept(publish, move |stream| {
            // Subscribed before the greeting, so that nothing after it is missed.
            let (events, batches) = (Arc::clone(&events), sender.subscribe());
            async move { events.publish(stream, batches).await }
        }));
        let events = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                events.news.notified().await;
                if let Some(batch) = events.next_batch() {
                    // Without a subscriber nothing is sent. Only numbers are queued: the memory of
                    // batches is bounded in one place.
                    let _ = batches.send(batch.number);
                }
            }
        });
        Ok(())
    }

    /// Sends batches to a subscriber until its connection ends.
    async fn publish(
        &self,
        stream: TcpStream,
        mut batches: broadcast::Receiver<u64>,
    ) -> io::Result<()> {
        let mut peer = greeted(stream, SocketType::Pub).await?;
        let mut topics: Vec<Vec<u8>> = vec![];
        loop {
            tokio::select! {
                received = peer.receive() => match received? {
                    Received::Subscribe(topic) => {
                        if topics.len() >= TOPICS.0 || topic.len() > TOPICS.1 {
                            return Err(io::Error::other("too many topics"));
                        }
                        topics.push(topic);
                    }
                    Received::Cancel(topic) => {
                        let at = topics.iter().position(|known| *known == topic);
                        at.map(|at| topics.swap_remove(at));
                    }
                    Received::Ping(context) => {
                        timeout(PATIENCE, peer.pong(&context)).await??;
                    }
                    Received::Message(_) => {}
                },
                batch = batches.recv() => {
                    let batch = match batch {
                        Ok(number) => self.sent(number),
                        Err(broadcast::error::RecvError::Lagged(_)) => None,
                        Err(broadcast::error::RecvError::Closed) => return Ok(()),
                    };
                    let topic = self.topic.as_bytes();
                    let wanted = topics.iter().any(|wanted| topic.starts_with(wanted));
                    if let Some(batch) = batch.filter(|_| wanted) {
                        let number = batch.number.to_be_bytes();
                        timeout(PATIENCE, peer.send(&[topic, &number, &batch.payload])).await??;
                    }
                }
            }
        }
    }

    /// Repeats batches to a REQ or DEALER socket. A request has an empty frame and the first number
    /// as 8 bytes. Each answer has an empty frame, a number and a batch; the last one has the
    /// number -1 and no batch.
    async fn repeat(&self, stream: TcpStream) -> io::Result<()> {
        let mut peer = greeted(stream, SocketType::Router).await?;
        loop {
            let frames = match peer.receive().await? {
                Received::Message(frames) => frames,
                Received::Ping(context) => {
                    timeout(PATIENCE, peer.pong(&context)).await??;
                    continue;
                }
                Received::Subscribe(_) | Received::Cancel(_) => continue,
            };
            let start = match frames.as_slice() {
                [empty, start] if empty.is_empty() => start.as_slice().try_into().ok(),
                _ => None,
            };
            let start = u64::from_be_bytes(
                start.ok_or_else(|| io::Error::other("no number of a batch was requested"))?,
            );
            let wanted: Vec<Batch> =
                self.state().sent.iter().filter(|b| b.number >= start).cloned().collect();
            for batch in wanted {
                let number = batch.number.to_be_bytes();
                timeout(PATIENCE, peer.send(&[&[], &number, &batch.payload])).await??;
            }
            timeout(PATIENCE, peer.send(&[&[], &[0xFF; 8], &[]])).await??;
        }
    }
}

async fn greeted(stream: TcpStream, is: SocketType) -> io::Result<Peer<TcpStream>> {
    let _ = stream.set_nodelay(true);
    timeout(PATIENCE, Peer::greet(stream, is)).await?
}

/// Accepts connections, each in a separate task. A connection that fails is closed.
async fn accept<F, T>(listener: TcpListener, serve: F)
where
    F: Fn(TcpStream) -> T,
    T: Future<Output = io::Result<()>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let served = serve(stream);
                tokio::spawn(async move {
                    let _ = served.await;
                    drop(place);
                });
            }
            // No file descriptor is left, or the client left early.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::zmtp::tests::{block_on, hello};
    use super::{Endpoint, KvEvents, MOST_PENDING, REPEATABLE};
    use kjit_model::serve::{BlockEvent, BlockHash};
    use std::sync::{Arc, Mutex};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    #[test]
    fn endpoint_is_an_address_of_this_machine_or_refused() {
        for (text, address) in [
            ("tcp://127.0.0.1:5557", "127.0.0.1:5557"),
            ("tcp://localhost:1", "127.0.0.1:1"),
            ("tcp://*:5557", "0.0.0.0:5557"),
            ("tcp://[::1]:5557", "[::1]:5557"),
        ] {
            assert_eq!(text.parse(), Ok(Endpoint(address.parse().unwrap())), "{text}");
        }
        for text in ["", "tcp://", "*:5557", "tcp://*", "ipc:///tmp/x", "tcp://*:70000"] {
            let why = text.parse::<Endpoint>().unwrap_err();
            assert!(why.contains("tcp://ADDRESS:PORT"), "{text}: {why}");
        }
    }

    fn stored(blocks: usize) -> BlockEvent {
        let tokens = vec![70_000; blocks * BlockEvent::TOKENS];
        BlockEvent::Stored { parent: None, blocks: vec![BlockHash([1; 32]); blocks], tokens }
    }

    static SAID: Mutex<String> = Mutex::new(String::new());

    /// Reads short frames until one has no more after it.
    async fn message(stream: &mut TcpStream) -> Vec<Vec<u8>> {
        let mut frames = vec![];
        loop {
            let mut head = [0; 2];
            stream.read_exact(&mut head).await.unwrap();
            assert!(head[0] < 2, "a short frame of a message: {head:?}");
            let mut body = vec![0; usize::from(head[1])];
            stream.read_exact(&mut body).await.unwrap();
            frames.push(body);
            if head[0] == 0 {
                return frames;
            }
        }
    }

    #[test]
    fn subscribers_get_numbered_batches_and_can_ask_for_missed_ones() {
        block_on(async {
            let any: Endpoint = "tcp://127.0.0.1:0".parse().unwrap();
            let events = Arc::new(KvEvents::new(any, Some(any), "kv@pod@model".to_owned()));
            events.begin(|line| *SAID.lock().unwrap() = line.to_owned()).await.unwrap();
            let said: &'static str = SAID.lock().unwrap().clone().leak();
            assert!(!said.contains("everyone"), "{said}");
            let rest = |part: &'static str| part.trim_end_matches(", repeated on tcp://");
            let ports: Vec<&str> = said.split("127.0.0.1:").skip(1).map(rest).collect();
            let connect = async |port: &str, kind: &str| {
                let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).await.unwrap();
                stream.write_all(&hello(kind)).await.unwrap();
                let mut greeting = [0; 64];
                stream.read_exact(&mut greeting).await.unwrap();
                let mut ready = [0; 2];
                stream.read_exact(&mut ready).await.unwrap();
                let mut body = vec![0; usize::from(ready[1])];
                stream.read_exact(&mut body).await.unwrap();
                assert!(ready[0] == 4 && body.starts_with(b"\x05READY"), "{ready:?}");
                stream
            };
            let mut subscriber = connect(ports[0], "SUB").await;
            let mut other = connect(ports[0], "SUB").await;
            subscriber.write_all(b"\0\x04\x01kv@").await.unwrap();
            other.write_all(b"\0\x06\x01other").await.unwrap();
            let removed = |n| BlockEvent::Removed { blocks: vec![BlockHash([n; 32])] };
            // Until the subscription has arrived, batches are dropped.
            let mut first = None;
            let sink = events.sink("GPU");
            while first.is_none() {
                sink(removed(1));
                let wait = std::time::Duration::from_millis(50);
                first = tokio::time::timeout(wait, message(&mut subscriber)).await.ok();
            }
            let first = first.unwrap();
            let number = |frame: &[u8]| u64::from_be_bytes(frame.try_into().unwrap());
            let at = number(&first[1]);
            sink(removed(2));
            let second = message(&mut subscriber).await;
            assert_eq!((first[0].as_slice(), first.len()), (&b"kv@pod@model"[..], 3));
            assert_eq!(number(&second[1]), at + 1);
            assert!(second[2].ends_with(b"\xCF\x02\x02\x02\x02\x02\x02\x02\x02\xA3GPU"));
            let mut asks = connect(ports[1], "REQ").await;
            asks.write_all(b"\x01\0\0\x08").await.unwrap();
            asks.write_all(&at.to_be_bytes()).await.unwrap();
            for wanted in [&first, &second] {
                let again = message(&mut asks).await;
                assert_eq!(again, [vec![], wanted[1].clone(), wanted[2].clone()]);
            }
            assert_eq!(message(&mut asks).await, [vec![], vec![0xFF; 8], vec![]]);
            // The other topic got nothing.
            let quiet = std::time::Duration::from_millis(100);
            assert!(tokio::time::timeout(quiet, other.read_u8()).await.is_err());
        });
    }

    #[test]
    fn memory_is_bounded_without_a_reader() {
        let endpoint: Endpoint = "tcp://127.0.0.1:0".parse().unwrap();
        let events = KvEvents::new(endpoint, None, String::new());
        // Events that nobody publishes become one that clears all.
        for _ in 0..40 {
            events.add(&stored(1000), "GPU");
            assert!(events.state().pending_bytes <= MOST_PENDING);
        }
        let batch = events.next_batch().unwrap();
        let cleared = b"AllBlocksCleared";
        assert!(batch.payload.windows(cleared.len()).any(|w| w == cleared));
        assert!(events.next_batch().is_none());
        for i in 0..200 {
            events.add(&stored(1000), "GPU");
            assert_eq!(events.next_batch().unwrap().number, i + 1);
        }
        let state = events.state();
        let bytes: usize = state.sent.iter().map(|batch| batch.payload.len()).sum();
        assert!(bytes == state.sent_bytes && bytes <= REPEATABLE.1 && bytes > REPEATABLE.1 / 2);
        assert_eq!(state.sent.back().unwrap().number, 200);
    }
}
