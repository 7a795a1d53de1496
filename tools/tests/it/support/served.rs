//! A server under test, and handwritten HTTP, so that a test controls each byte.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// `kjit serve` on a free port. It is killed at the end of the test.
pub struct Served {
    pub child: Child,
    pub address: SocketAddr,
    /// Warnings that it printed before it listened.
    pub warned: Vec<String>,
    said: Mutex<mpsc::Receiver<String>>,
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// The documents of a stream of events, without the end marker.
    pub fn events(&self) -> Vec<Value> {
        assert!(self.body.ends_with("data: [DONE]\n\n"), "{self:?}");
        let events = self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        events
            .filter(|event| *event != "[DONE]")
            .map(|event| serde_json::from_str(event).unwrap())
            .collect()
    }
}

/// The command of this build, or the one in `KJIT_TEST_COMMAND` if the tests run on another
/// machine.
pub fn command() -> Command {
    let carried = std::env::var_os("KJIT_TEST_COMMAND");
    Command::new(carried.as_deref().unwrap_or(env!("CARGO_BIN_EXE_kjit").as_ref()))
}

impl Served {
    /// Serves SmolLM2 on the CPU with more flags, and waits until it is loaded.
    pub fn start(flags: &[&str]) -> Served {
        Served::with(command().arg("serve").arg(crate::support::smollm2()), flags)
    }

    /// Starts it with another command.
    pub fn with(command: &mut Command, flags: &[&str]) -> Served {
        Served::by(command.args(["--port", "0", "--device", "cpu", "-c", "1024"]).args(flags))
    }

    /// Starts it with a complete command.
    pub fn by(command: &mut Command) -> Served {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let (warned, address) = listening(&mut stderr);
        let (to, said) = mpsc::channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| to.send(line))
        });
        let line = said.recv_timeout(Duration::from_secs(120)).unwrap();
        assert!(line.starts_with("serving ") && line.contains(&address.to_string()), "{line}");
        Served { child, address, warned, said: Mutex::new(said) }
    }

    /// The next line of its stderr.
    pub fn line(&self) -> String {
        self.said.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        stream
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[], body.to_string().as_bytes())
    }

    /// Sends a request that must get status 200.
    pub fn good(&self, path: &str, body: &Value) -> Answer {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
        self.try_ask(method, path, headers, body).unwrap()
    }

    pub fn try_ask(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &[u8],
    ) -> std::io::Result<Answer> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        stream.write_all(request(method, path, headers, body).as_bytes())?;
        // The server need not read a large body that it refuses.
        let _ = stream.write_all(body);
        answer(&mut stream)
    }

    /// Waits until the status of the server meets a condition.
    pub fn wait_for(&self, what: &str, good: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let status = self.get("/status").json();
            if good(&status) {
                return status;
            }
            assert!(Instant::now() < until, "{what}: {status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes two numbers; the child was not waited for yet, so its id is still
        // valid.
        unsafe { libc::kill(i32::try_from(self.child.id()).unwrap(), signal) };
    }

    /// Stops it and returns its exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.signal(libc::SIGTERM);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listening(stderr: &mut BufReader<ChildStderr>) -> (Vec<String>, SocketAddr) {
    let (mut warned, mut line) = (vec![], String::new());
    while stderr.read_line(&mut line).unwrap() > 0 && line.starts_with("warning: ") {
        warned.push(std::mem::take(&mut line));
    }
    let address = line
        .strip_prefix("listening on http")
        .map(|rest| rest.trim_start_matches('s').trim_start_matches("://"))
        .and_then(|rest| rest.split(',').next());
    (warned, address.unwrap_or_else(|| panic!("{line}")).parse().unwrap())
}

pub fn request(method: &str, path: &str, headers: &[&str], body: &[u8]) -> String {
    let more: String = headers.iter().map(|h| format!("{h}\r\n")).collect();
    let host = if headers.iter().any(|h| h.to_lowercase().starts_with("host:")) {
        ""
    } else {
        "Host: localhost\r\n"
    };
    format!(
        "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {}\r\n{more}\r\n",
        body.len()
    )
}

/// Reads an answer to its end.
pub fn answer(stream: &mut TcpStream) -> std::io::Result<Answer> {
    let mut all = vec![];
    stream.read_to_end(&mut all)?;
    let all = String::from_utf8_lossy(&all).into_owned();
    let Some((headers, body)) = all.split_once("\r\n\r\n") else {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    };
    let status = headers.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let chunked = headers.to_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunked(body) } else { body.to_owned() };
    Ok(Answer { status, headers: headers.to_owned(), body })
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let Some(chunk) = after.get(..size).filter(|_| size > 0) else { break };
        body.push_str(chunk);
        rest = after[size..].trim_start_matches("\r\n");
    }
    body
}
