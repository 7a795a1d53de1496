//! Stores responses so that a conversation can continue from them: in memory, for an hour,
//! separately for each client. Running responses are registered here, so that they can be
//! cancelled.

use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a response is stored. OpenAI stores responses for 30 days, on disk.
const FOR: Duration = Duration::from_secs(3600);
/// Maximum bytes of all stored responses.
const MAX_BYTES: usize = 64 << 20;
/// Maximum number of stored responses of one client.
const MAX_RESPONSES: usize = 1000;

/// The client that requested a response: the digest of its API key, `None` without a key.
pub type Client = Option<String>;

/// A stored response.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The response's document.
    pub document: Arc<Value>,
    /// The items of the conversation including this response. Items of earlier responses are
    /// shared.
    pub items: Vec<Arc<Value>>,
}

struct StoredAnswer {
    id: String,
    made: Instant,
    bytes: usize,
    entry: Entry,
}

#[derive(Default)]
struct All {
    /// Stored responses by client, oldest first.
    held: HashMap<Client, VecDeque<StoredAnswer>>,
    bytes: usize,
    running: HashMap<(Client, String), watch::Sender<bool>>,
}

/// All stored and running responses.
#[derive(Default)]
pub struct ResponseStore(Mutex<All>);

impl ResponseStore {
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a response. The last `new` items of the entry are not part of an earlier response. If
    /// memory is short, the oldest responses of the client with the most bytes are dropped.
    pub fn put(&self, client: &Client, id: &str, entry: Entry, new: usize) {
        self.put_at(client, id, entry, new, Instant::now());
    }

    fn put_at(&self, client: &Client, id: &str, entry: Entry, new: usize, now: Instant) {
        let own = entry.items.iter().rev().take(new).map(|item| size(item)).sum::<usize>();
        let bytes = own + size(&entry.document) + entry.items.len() * size_of::<Arc<Value>>();
        let mut gone = vec![];
        let mut all = self.lock();
        gone.extend(all.expired(now));
        all.bytes += bytes;
        let held = all.held.entry(client.clone()).or_default();
        held.push_back(StoredAnswer { id: id.to_owned(), made: now, bytes, entry });
        while all.held.get(client).is_some_and(|held| held.len() > MAX_RESPONSES) {
            gone.extend(all.drop_oldest(client));
        }
        while all.bytes > MAX_BYTES {
            let has =
                |held: &VecDeque<StoredAnswer>| held.iter().map(|one| one.bytes).sum::<usize>();
            let most = all.held.iter().max_by_key(|(_, held)| has(held));
            let Some(client) = most.map(|(client, _)| client.clone()) else { break };
            gone.extend(all.drop_oldest(&client));
        }
        // The memory is freed after the lock is released.
        drop(all);
        drop(gone);
    }

    /// The stored response of this client with this id.
    pub fn get(&self, client: &Client, id: &str) -> Option<Entry> {
        self.get_at(client, id, Instant::now())
    }

    fn get_at(&self, client: &Client, id: &str, now: Instant) -> Option<Entry> {
        let all = self.lock();
        let held = all.held.get(client)?.iter().find(|held| held.id == id)?;
        (now.duration_since(held.made) < FOR).then(|| held.entry.clone())
    }

    /// The item with this id of any response of this client.
    pub fn item(&self, client: &Client, id: &str) -> Option<Arc<Value>> {
        let all = self.lock();
        let fresh = all.held.get(client)?.iter().rev().filter(|held| held.made.elapsed() < FOR);
        let is = |item: &&Arc<Value>| item.get("id").and_then(Value::as_str) == Some(id);
        fresh.flat_map(|held| held.entry.items.iter().rev()).find(is).cloned()
    }

    /// Drops a stored response. Returns whether it existed.
    pub fn delete(&self, client: &Client, id: &str) -> bool {
        let mut all = self.lock();
        let Some(held) = all.held.get_mut(client) else { return false };
        let Some(at) = held.iter().position(|held| held.id == id) else { return false };
        let gone = held.remove(at);
        if held.is_empty() {
            all.held.remove(client);
        }
        all.bytes -= gone.as_ref().map_or(0, |held| held.bytes);
        drop(all);
        gone.is_some_and(|held| held.made.elapsed() < FOR)
    }

    /// Registers a running response until the returned value is dropped. `Run::cancelled` reports a
    /// cancellation.
    pub fn run(self: &Arc<ResponseStore>, client: &Client, id: &str) -> Run {
        let to = watch::Sender::new(false);
        let cancelled = to.subscribe();
        let name = (client.clone(), id.to_owned());
        self.lock().running.insert(name.clone(), to);
        Run { kept: Arc::clone(self), name, cancelled }
    }

    /// Cancels a running response. Returns whether it existed.
    pub fn cancel(&self, client: &Client, id: &str) -> bool {
        let all = self.lock();
        let running = all.running.get(&(client.clone(), id.to_owned()));
        running.map(|to| to.send_replace(true)).is_some()
    }
}

impl All {
    fn drop_oldest(&mut self, client: &Client) -> Option<StoredAnswer> {
        let held = self.held.get_mut(client)?;
        let gone = held.pop_front();
        if held.is_empty() {
            self.held.remove(client);
        }
        self.bytes -= gone.as_ref().map_or(0, |held| held.bytes);
        gone
    }

    fn expired(&mut self, now: Instant) -> Vec<StoredAnswer> {
        let mut gone = vec![];
        for held in self.held.values_mut() {
            while held.front().is_some_and(|one| now.duration_since(one.made) >= FOR) {
                gone.extend(held.pop_front());
            }
        }
        self.held.retain(|_, held| !held.is_empty());
        self.bytes -= gone.iter().map(|one| one.bytes).sum::<usize>();
        gone
    }
}

/// A registration of a running response.
pub struct Run {
    kept: Arc<ResponseStore>,
    name: (Client, String),
    /// Becomes `true` if the response is cancelled.
    pub cancelled: watch::Receiver<bool>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.kept.lock().running.remove(&self.name);
    }
}

/// The approximate size of a document in memory, in bytes.
fn size(value: &Value) -> usize {
    const TEST_ITEM_BYTES: usize = 64;
    let inside = match value {
        Value::String(text) => text.len(),
        Value::Array(all) => all.iter().map(size).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + size(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    TEST_ITEM_BYTES + inside
}

#[cfg(test)]
mod tests {
    use super::{Arc, Client, Entry, FOR, Instant, MAX_BYTES, MAX_RESPONSES, ResponseStore, Value};
    use std::time::Duration;

    fn json_text(bytes: usize) -> Arc<Value> {
        Arc::new(Value::from("x".repeat(bytes)))
    }

    fn entry(items: Vec<Arc<Value>>) -> Entry {
        Entry { document: Arc::new(Value::Null), items }
    }

    #[test]
    fn response_is_stored_one_hour_for_its_client() {
        let (kept, now) = (ResponseStore::default(), Instant::now());
        let (a, b): (Client, Client) = (Some("a".into()), None);
        let item = Arc::new(serde_json::json!({ "id": "i" }));
        kept.put_at(&a, "1", entry(vec![item]), 1, now);
        assert!(kept.get(&a, "1").is_some() && kept.get(&b, "1").is_none());
        assert!(kept.item(&a, "i").is_some() && kept.item(&b, "i").is_none());
        assert!(kept.get_at(&a, "1", now + FOR).is_none());
        assert!(!kept.delete(&b, "1") && kept.delete(&a, "1") && !kept.delete(&a, "1"));
        kept.put_at(&a, "1", entry(vec![]), 0, now);
        kept.put_at(&b, "2", entry(vec![]), 0, now + FOR);
        assert!(!kept.lock().held.contains_key(&a), "it is evicted when another is stored");
        kept.delete(&b, "2");
        assert_eq!(kept.lock().bytes, 0);
    }

    #[test]
    fn largest_client_is_evicted_first() {
        let (kept, now) = (ResponseStore::default(), Instant::now());
        let (many, few): (Client, Client) = (Some("many".into()), Some("few".into()));
        kept.put_at(&few, "first", entry(vec![json_text(1000)]), 1, now);
        for i in 0..9 {
            let large = vec![json_text(MAX_BYTES / 8)];
            kept.put_at(&many, &i.to_string(), entry(large), 1, now + Duration::from_secs(i));
        }
        assert!(kept.get(&few, "first").is_some() && kept.get(&many, "0").is_none());
        assert!(kept.get(&many, "8").is_some() && kept.lock().bytes <= MAX_BYTES);
        for i in 0..=MAX_RESPONSES {
            kept.put_at(&few, &i.to_string(), entry(vec![]), 0, now);
        }
        assert!(kept.get(&few, "first").is_none() && kept.get(&few, "0").is_none());
        assert!(kept.get(&few, "1").is_some());
    }

    #[test]
    fn running_response_is_cancelled_only_by_its_client() {
        let kept = Arc::new(ResponseStore::default());
        let run = kept.run(&None, "1");
        assert!(!kept.cancel(&Some("other".into()), "1") && !*run.cancelled.borrow());
        assert!(kept.cancel(&None, "1") && *run.cancelled.borrow());
        drop(run);
        assert!(!kept.cancel(&None, "1"));
    }
}
