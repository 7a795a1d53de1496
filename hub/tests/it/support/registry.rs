//! A small registry on 127.0.0.1: blobs and manifests of any repository, with a login, a token
//! service and a storage host on request. It records requests.

#![allow(dead_code, reason = "the tests of two crates share it, and each uses its part")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use super::server::sha256;

/// The behaviour of the registry.
#[derive(Default)]
pub struct Behaviour {
    /// The `Authorization` header that it wants.
    pub wants: Option<String>,
    /// The `Authorization` header of its token service, which gives the token `abc`.
    pub tokens_for: Option<String>,
    /// Blobs are redirected to the storage host.
    pub storage: bool,
    /// One byte of each downloaded blob is changed.
    pub wrong: bool,
}

#[derive(Default)]
pub struct State {
    pub behaviour: Behaviour,
    pub blobs: BTreeMap<String, Vec<u8>>,
    pub manifests: BTreeMap<String, Vec<u8>>,
    /// Method, host (`registry` or `storage`), path, and the `Authorization` header.
    pub seen: Vec<(String, String)>,
    storage: String,
    own: String,
}

pub struct RegistryServer {
    pub state: Arc<Mutex<State>>,
    /// Host and port.
    pub host: String,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl RegistryServer {
    pub fn new(behaviour: Behaviour) -> RegistryServer {
        let [registry, storage] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let host = registry.local_addr().unwrap().to_string();
        let storage_host = format!("http://{}", storage.local_addr().unwrap());
        let own = host.clone();
        let state = State { behaviour, storage: storage_host, own, ..State::default() };
        let state = Arc::new(Mutex::new(state));
        for (listener, name) in [(registry, "registry"), (storage, "storage")] {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = Arc::clone(&state);
                    thread::spawn(move || serve(&state, name, stream));
                }
            });
        }
        RegistryServer { state, host }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        held(&self.state)
    }

    /// The requests that contain a text.
    pub fn seen(&self, text: &str) -> Vec<(String, String)> {
        self.state().seen.iter().filter(|(what, _)| what.contains(text)).cloned().collect()
    }
}

fn serve(state: &Mutex<State>, name: &str, stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut out = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut words = line.split_whitespace();
        let (method, target) = (
            words.next().unwrap_or_default().to_owned(),
            words.next().unwrap_or_default().to_owned(),
        );
        let (mut length, mut login) = (0, String::new());
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap_or(0);
            let Some((name, value)) = header.trim().split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap(),
                "authorization" => login = value.trim().to_owned(),
                "transfer-encoding" => panic!("a registry wants a length"),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let mut state = held(state);
        state.seen.push((format!("{method} {name} {target}"), login.clone()));
        let (status, headers, answer) = answer(&mut state, name, &method, &target, &login, body);
        drop(state);
        let head =
            format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n{headers}\r\n", answer.len());
        let body: &[u8] = if method == "HEAD" { &[] } else { &answer };
        if out.write_all(head.as_bytes()).and_then(|()| out.write_all(body)).is_err() {
            return;
        }
    }
}

fn answer(
    state: &mut State,
    name: &str,
    method: &str,
    target: &str,
    login: &str,
    body: Vec<u8>,
) -> (u16, String, Vec<u8>) {
    let none = |status| (status, String::new(), vec![]);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if path == "/token" {
        let wanted = state.behaviour.tokens_for.clone().unwrap_or_default();
        return match wanted == login && query.contains("scope=repository%3Ak%2Fpacks%3Apull") {
            true => (200, String::new(), b"{\"token\":\"abc\"}".to_vec()),
            false => none(401),
        };
    }
    let blob = |state: &State, digest: &str| {
        let mut blob = state.blobs.get(digest).cloned()?;
        if let Some(first) = blob.first_mut().filter(|_| state.behaviour.wrong) {
            *first ^= 1;
        }
        Some(blob)
    };
    let last = path.rsplit('/').next().unwrap_or_default().to_owned();
    if name == "storage" {
        return blob(state, &last).map_or(none(404), |blob| (200, String::new(), blob));
    }
    if state.behaviour.wants.as_deref().is_some_and(|wanted| wanted != login) {
        let challenge = match &state.behaviour.tokens_for {
            Some(_) => format!(
                "Bearer realm=\"http://{}/token\",service=\"r\",scope=\"repository:k/packs:pull\"",
                state.own
            ),
            None => "Basic realm=\"r\"".to_owned(),
        };
        let challenge = format!("www-authenticate: {challenge}\r\n");
        return (401, challenge, vec![]);
    }
    let rest = path.strip_prefix("/v2/k/packs/").unwrap_or_default().to_owned();
    match (method, rest.split_once('/')) {
        ("HEAD", Some(("blobs", digest))) if state.blobs.contains_key(digest) => none(200),
        ("GET", Some(("blobs", digest))) if state.blobs.contains_key(digest) => {
            if state.behaviour.storage {
                let to = format!("location: {}/signed/{digest}\r\n", state.storage);
                return (307, to, vec![]);
            }
            (200, String::new(), blob(state, digest).unwrap())
        }
        ("POST", Some(("blobs", "uploads/"))) => {
            (202, "location: /v2/k/packs/blobs/uploads/1?state=x\r\n".to_owned(), vec![])
        }
        ("PUT", Some(("blobs", "uploads/1"))) => {
            let digest = query.strip_prefix("state=x&digest=").unwrap_or_default().to_owned();
            if digest != format!("sha256:{}", sha256(&body)) {
                let said = b"{\"errors\":[{\"message\":\"digest invalid\"}]}".to_vec();
                return (400, String::new(), said);
            }
            state.blobs.insert(digest, body);
            none(201)
        }
        ("PUT", Some(("manifests", tag))) => {
            state.manifests.insert(tag.to_owned(), body);
            none(201)
        }
        ("GET", Some(("manifests", tag))) => match state.manifests.get(tag) {
            Some(manifest) => (200, String::new(), manifest.clone()),
            None => none(404),
        },
        _ => none(404),
    }
}
