//! A hub on 127.0.0.1 that behaves like the real hub: an API, files behind a redirect to another
//! host (here: another port), ranges, and error codes. It records requests and produces the faults
//! that a test sets.

#![allow(dead_code, reason = "the tests of two crates share it, and each uses its part")]

use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// A fault that happens once.
#[derive(Clone)]
pub enum Fault {
    /// This status, with these headers.
    Status(u16, &'static str),
    /// The connection closes without an answer.
    Close,
    /// The connection closes after this many bytes of the body.
    Cut(usize),
    /// After this many bytes nothing comes until the flag is set or a minute has passed.
    Wait(usize, Arc<AtomicBool>),
    /// One byte at a time, with this pause after each.
    Drip(Duration),
    /// One byte is changed.
    Wrong,
    /// The announced and the sent length are larger by this number of bytes (or smaller if
    /// negative).
    Longer(isize),
    /// Ranges are ignored: the whole file is sent.
    NoRange,
    /// A redirect to this address.
    To(String),
}

/// A repository.
#[derive(Clone)]
pub struct Repo {
    pub name: String,
    pub commit: String,
    pub files: Vec<(String, Vec<u8>)>,
    /// The token that it requires.
    pub token: Option<String>,
    /// Whether it is gated and its terms were not accepted.
    pub gated: bool,
    /// New name of the repository.
    pub moved: Option<String>,
}

/// A request that was received.
#[derive(Debug, Clone)]
pub struct Seen {
    /// `GET hub /api/…` or `HEAD cdn /…`.
    pub what: String,
    pub range: Option<String>,
    pub token: Option<String>,
}

pub struct Server {
    state: Arc<State>,
    pub endpoint: String,
    pub cdn: String,
}

struct State {
    repos: Mutex<Vec<Repo>>,
    faults: Mutex<Vec<(String, Fault)>>,
    seen: Mutex<Vec<Seen>>,
    cdn: String,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Random bytes.
pub fn noise(n: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    (0..n)
        .map(|_| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 56) as u8
        })
        .collect()
}

pub fn repo(name: &str, files: &[(&str, Vec<u8>)]) -> Repo {
    let files: Vec<_> = files.iter().map(|(n, b)| ((*n).to_owned(), b.clone())).collect();
    let commit = sha256(format!("{name} {}", files.len()).as_bytes())[..40].to_owned();
    Repo { name: name.into(), commit, files, token: None, gated: false, moved: None }
}

impl Server {
    pub fn new(repos: Vec<Repo>) -> Server {
        let (hub, cdn) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = |l: &TcpListener| format!("http://{}", l.local_addr().unwrap());
        let (endpoint, cdn_address) = (address(&hub), address(&cdn));
        let state = State {
            repos: Mutex::new(repos),
            faults: Mutex::default(),
            seen: Mutex::default(),
            cdn: cdn_address.clone(),
        };
        let state = Arc::new(state);
        for (listener, name) in [(hub, "hub"), (cdn, "cdn")] {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = Arc::clone(&state);
                    thread::spawn(move || serve(&state, name, stream));
                }
            });
        }
        Server { state, endpoint, cdn: cdn_address }
    }

    /// Sets the fault for the next request whose `METHOD host path` contains this string.
    pub fn fault(&self, part: &str, fault: Fault) {
        held(&self.state.faults).push((part.to_owned(), fault));
    }

    /// Number of faults that did not happen yet.
    pub fn faults_left(&self) -> usize {
        held(&self.state.faults).len()
    }

    pub fn seen(&self) -> Vec<Seen> {
        held(&self.state.seen).clone()
    }

    /// Number of requests that contain this string, since the last call of [`Server::forget`].
    pub fn count(&self, part: &str) -> usize {
        self.seen().iter().filter(|s| s.what.contains(part)).count()
    }

    pub fn forget(&self) {
        held(&self.state.seen).clear();
    }

    /// Sets the content of a repository.
    pub fn replace(&self, repo: Repo) {
        let mut repos = held(&self.state.repos);
        repos.retain(|r| r.name != repo.name);
        repos.push(repo);
    }
}

fn serve(state: &State, who: &str, mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut first, mut range, mut token) = (String::new(), None, None);
    if reader.read_line(&mut first).unwrap_or(0) == 0 {
        return;
    }
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
            break;
        }
        let (name, value) = line.trim().split_once(": ").unwrap_or((line.trim(), ""));
        match name.to_ascii_lowercase().as_str() {
            "range" => range = Some(value.to_owned()),
            "authorization" => token = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let what = format!("{method} {who} {path}");
    held(&state.seen).push(Seen { what: what.clone(), range: range.clone(), token: token.clone() });
    let fault = {
        let mut faults = held(&state.faults);
        let at = faults.iter().position(|(part, _)| what.contains(part.as_str()));
        at.map(|at| faults.remove(at).1)
    };
    let answer = match &fault {
        Some(Fault::Close) => return,
        Some(Fault::Status(status, headers)) => Answer::new(*status, headers, b"said no"),
        Some(Fault::To(to)) => Answer::new(302, &format!("Location: {to}\r\n"), b""),
        _ if who == "cdn" => content(state, path),
        _ => hub(state, path, token.as_deref()),
    };
    let range = range.filter(|_| !matches!(fault, Some(Fault::NoRange)));
    let _ = send(&mut stream, method == "HEAD", answer, range.as_deref(), fault);
}

struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

impl Answer {
    fn new(status: u16, headers: &str, body: &[u8]) -> Answer {
        Answer { status, headers: headers.to_owned(), body: body.to_vec() }
    }
}

fn hub(state: &State, path: &str, token: Option<&str>) -> Answer {
    let none =
        |code: &str, status| Answer::new(status, &format!("X-Error-Code: {code}\r\n"), b"no");
    let path = path.replace("%20", " ").replace("%2F", "/");
    let (api, path) = match path.strip_prefix("/api/models/") {
        Some(rest) => (true, rest.to_owned()),
        None => (false, path.trim_start_matches('/').to_owned()),
    };
    let mut parts = path.splitn(3, '/');
    let name = format!("{}/{}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let rest = parts.next().unwrap_or_default();
    let Some(repo) = held(&state.repos).iter().find(|r| r.name == name).cloned() else {
        return none("RepoNotFound", 401);
    };
    if let Some(moved) = &repo.moved {
        let to =
            if api { format!("/api/models/{moved}/{rest}") } else { format!("/{moved}/{rest}") };
        return Answer::new(307, &format!("Location: {to}\r\n"), b"");
    }
    if token.is_some_and(|t| t == "Bearer hf_wrong") {
        return Answer::new(401, "", b"Invalid username or password.");
    }
    if repo.token.as_ref().is_some_and(|t| token != Some(&format!("Bearer {t}"))) {
        return none("RepoNotFound", 401);
    }
    let known = |revision: &str| revision == "main" || revision == repo.commit;
    let commit = format!("X-Repo-Commit: {}\r\n", repo.commit);
    if api {
        if !known(rest.trim_start_matches("revision/")) {
            return none("RevisionNotFound", 404);
        }
        let files: Vec<String> =
            repo.files.iter().map(|(n, _)| format!("{{\"rfilename\":\"{n}\"}}")).collect();
        let doc = format!(
            "{{\"id\":\"{name}\",\"sha\":\"{}\",\"siblings\":[{}]}}",
            repo.commit,
            files.join(",")
        );
        return Answer::new(200, "Content-Type: application/json\r\n", doc.as_bytes());
    }
    if repo.gated {
        return none("GatedRepo", if token.is_some() { 403 } else { 401 });
    }
    let (revision, file) = rest.trim_start_matches("resolve/").split_once('/').unwrap_or_default();
    if !known(revision) {
        return none("RevisionNotFound", 404);
    }
    let Some((_, bytes)) = repo.files.iter().find(|(n, _)| n == file) else {
        return Answer::new(
            404,
            &format!("X-Error-Code: EntryNotFound\r\n{commit}"),
            b"Entry not found",
        );
    };
    let digest = sha256(bytes);
    if !file.ends_with(".gguf") {
        return Answer::new(200, &format!("{commit}ETag: \"{}\"\r\n", &digest[..40]), bytes);
    }
    let headers = format!(
        "{commit}X-Linked-ETag: \"{digest}\"\r\nX-Linked-Size: {}\r\nLocation: \
         {}/content/{digest}?X-Signature=secret\r\n",
        bytes.len(),
        state.cdn
    );
    Answer::new(302, &headers, b"Found. Redirecting")
}

fn content(state: &State, path: &str) -> Answer {
    let digest = path.trim_start_matches("/content/").split('?').next().unwrap_or_default();
    let repos = held(&state.repos);
    let found = repos.iter().flat_map(|r| &r.files).find(|(_, bytes)| sha256(bytes) == digest);
    match found {
        Some((_, bytes)) => {
            Answer::new(200, "ETag: \"another\"\r\nAccept-Ranges: bytes\r\n", bytes)
        }
        None => Answer::new(403, "", b"expired"),
    }
}

fn send(
    stream: &mut TcpStream,
    head: bool,
    answer: Answer,
    range: Option<&str>,
    fault: Option<Fault>,
) -> std::io::Result<()> {
    let (mut status, mut headers, mut body) = (answer.status, answer.headers, answer.body);
    let all = body.len();
    if matches!(fault, Some(Fault::Wrong)) {
        body[all / 2] ^= 1;
    }
    let from =
        range.and_then(|r| r.strip_prefix("bytes=")?.trim_end_matches('-').parse::<usize>().ok());
    if let Some(from) = from.filter(|_| status == 200) {
        if from >= all {
            return write!(
                stream,
                "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\nConnection: \
                 close\r\n\r\n"
            );
        }
        status = 206;
        headers += &format!("Content-Range: bytes {from}-{}/{all}\r\n", all - 1);
        body.drain(..from);
    }
    if let Some(Fault::Longer(by)) = fault {
        body.resize(body.len().saturating_add_signed(by), 0);
    }
    write!(
        stream,
        "HTTP/1.1 {status} Said\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    )?;
    if head {
        return Ok(());
    }
    let (cut, rest) = match &fault {
        Some(Fault::Cut(n)) | Some(Fault::Wait(n, _)) => body.split_at((*n).min(body.len())),
        _ => (&body[..], &[][..]),
    };
    if let Some(Fault::Drip(pause)) = fault {
        for byte in cut.chunks(1) {
            stream.write_all(byte)?;
            thread::sleep(pause);
        }
    } else {
        stream.write_all(cut)?;
    }
    stream.flush()?;
    if let Some(Fault::Wait(_, flag)) = &fault {
        let start = Instant::now();
        while !flag.load(SeqCst) && start.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(5));
        }
        stream.write_all(rest)?;
    }
    stream.flush()?;
    // Closing a connection with unread bytes would reset it and discard the answer.
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let _ = stream.read(&mut [0; 64]);
    Ok(())
}
