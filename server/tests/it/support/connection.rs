//! Sends any bytes as a client of `kjit serve`: each request is answered, none with 500, a refusal
//! is one document, and nothing of the request is left. A body may be given alone: bytes that begin
//! with a route's number (a digit) and a line end are sent as a correct request with that body.

use kjit_model::DeviceChoice;
use kjit_model::session::OpenOptions;
use kjit_server::{InProcessServer, Limits, Options, Served};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

const ROUTES: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/inference",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/show",
    "/status",
];

/// The tiny model has no template. With this one, calls have a known form.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% for t in tools or [] %}<tools>\
    {{ t | tojson }}</tools> <tool_call>{\"name\": …, \"arguments\": …}</tool_call>{% endfor %}assistant:";

/// The tiny model of the tests.
pub fn model() -> PathBuf {
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.models");
    std::env::var_os("KJIT_TEST_MODELS")
        .map_or_else(usual, PathBuf::from)
        .join("tiny/tiny-llama-q4_k_m.gguf")
}

/// A server of it.
pub fn server() -> &'static (Runtime, InProcessServer) {
    static SERVER: OnceLock<(Runtime, InProcessServer)> = OnceLock::new();
    SERVER.get_or_init(|| {
        let template = std::env::temp_dir().join(format!("kjit-fuzz-{}.jinja", std::process::id()));
        std::fs::write(&template, TEMPLATE).unwrap();
        let served = Served {
            open: OpenOptions {
                device: DeviceChoice::Cpu,
                threads: 1,
                sequences: 4,
                ..OpenOptions::new(512)
            },
            ..Served::new(model(), vec!["tiny".to_owned()])
        };
        let second = Duration::from_secs(1);
        let options = Options {
            template: Some(template.clone()),
            max_queue: 64,
            // The sending side is closed, so that a server that waits for more of a request sees
            // its end.
            limits: Limits {
                headers: second,
                idle: 2 * second,
                body_time: second,
                ..Limits::default()
            },
            ..Options::new(vec![served])
        };
        let inside = InProcessServer::open(options)
            .unwrap_or_else(|why| panic!("{why} (scripts/fetch-test-models)"));
        let _ = std::fs::remove_file(template);
        (Builder::new_current_thread().enable_all().build().unwrap(), inside)
    })
}

/// The bytes to send.
fn sent(bytes: &[u8]) -> Vec<u8> {
    let route = bytes.first().and_then(|digit| ROUTES.get(usize::from(digit.wrapping_sub(b'0'))));
    match (route, bytes.get(1), bytes.get(2..)) {
        (Some(route), Some(b'\n'), Some(body)) => {
            let head = format!(
                "POST {route} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: \
                 {}\r\n\r\n",
                body.len()
            );
            [head.as_bytes(), body].concat()
        }
        _ => bytes.to_vec(),
    }
}

/// Sends the bytes and checks the answer.
pub fn exercise(bytes: &[u8]) -> String {
    let (runtime, inside) = server();
    let sent = sent(bytes);
    let said = runtime.block_on(async {
        let (client, connection) = tokio::io::duplex(1 << 20);
        let (mut from, mut to) = tokio::io::split(client);
        let asks = async {
            let _ = to.write_all(&sent).await;
            let mut said = vec![];
            let mut some = [0; 4096];
            // A connection that is kept open is silent after the answer. Before it, a server that
            // computes is waited for.
            loop {
                let read = from.read(&mut some);
                match tokio::time::timeout(Duration::from_millis(100), read).await {
                    Ok(Ok(n @ 1..)) => said.extend_from_slice(&some[..n]),
                    Err(_) if said.is_empty() && inside.busy() > 0 => {}
                    _ => break,
                }
            }
            drop((from, to));
            said
        };
        tokio::join!(inside.answer(connection), asks).1
    });
    let text = String::from_utf8_lossy(&said);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 "), "{text:?}");
    assert!(!text.contains("HTTP/1.1 500"), "{text}");
    // Nothing is computed for a client that has gone.
    for _ in 0..5000 {
        if inside.busy() == 0 {
            return text.into_owned();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("something is still computed");
}
