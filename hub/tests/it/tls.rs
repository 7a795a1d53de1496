//! Untrusted certificates, and a connection that others can read: a TLS tunnel before the hub.

use crate::it::support::server::{Server, noise, repo};
use kjit_hub::{Error, Hub, Pulled, Settings};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Ends TLS and forwards the bytes.
const TUNNEL: &str = "
import socket, ssl, sys, threading
certificate, key, port = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
def copy(a, b):
    try:
        while data := a.recv(65536): b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError: pass
def serve(raw):
    try: client = context.wrap_socket(raw, server_side=True)
    except OSError: return
    hub = socket.create_connection(('127.0.0.1', int(port)))
    threading.Thread(target=copy, args=(client, hub), daemon=True).start()
    copy(hub, client)
    client.close()
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

struct Tunnel(Child);

impl Drop for Tunnel {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pull(endpoint: &str, certificates: Option<&Path>, cache: &Path) -> Result<Pulled, Error> {
    let settings = Settings {
        pause: Duration::ZERO,
        patience: Duration::from_secs(5),
        certificates: certificates.map(Path::to_owned),
        ..Settings::new(endpoint, cache)
    };
    Hub::new(settings).pull(&"hf:org/m:Q4_0".parse().unwrap(), &|_| {})
}

#[test]
fn untrusted_certificates_and_redirects_to_http_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (key, certificate) = (dir.path().join("key.pem"), dir.path().join("certificate.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ])
        .args([
            "-addext",
            "subjectAltName=DNS:localhost",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-keyout",
        ])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output();
    let python = Command::new("python3").arg("--version").output();
    if !made.is_ok_and(|o| o.status.success()) || python.is_err() {
        eprintln!("SKIPPED: no openssl and python3 here to make a TLS server with");
        return;
    }
    let server = Server::new(vec![repo("org/m", &[("m-Q4_0.gguf", noise(1000, 1))])]);
    let mut tunnel = Command::new("python3");
    tunnel
        .args(["-c", TUNNEL])
        .args([&certificate, &key])
        .arg(server.endpoint.rsplit(':').next().unwrap());
    let mut tunnel = Tunnel(tunnel.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut port = String::new();
    BufReader::new(tunnel.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let endpoint = format!("https://localhost:{}", port.trim());
    // The certificate is not trusted: there is no second try, and nothing was sent.
    let line = pull(&endpoint, None, dir.path()).unwrap_err().to_string();
    assert!(
        line.contains(&endpoint)
            && line.contains("no trusted certificate")
            && line.contains("SSL_CERT_FILE"),
        "{line}"
    );
    assert_eq!(server.seen().len(), 0);
    // The certificate is for another name.
    let other = endpoint.replace("localhost", "127.0.0.1");
    let line = pull(&other, Some(&certificate), dir.path()).unwrap_err().to_string();
    assert!(line.contains("no trusted certificate"), "{line}");
    assert_eq!(server.seen().len(), 0);
    // The certificate is trusted, but the content would be sent over a connection that others can
    // read and change.
    let line = pull(&endpoint, Some(&certificate), dir.path()).unwrap_err().to_string();
    assert!(line.contains("leads to http://127.0.0.1") && !line.contains("secret"), "{line}");
    assert!(server.count("hub") >= 2 && server.count("cdn") == 0);
    fs::write(&certificate, "nothing").unwrap();
    let line = pull(&endpoint, Some(&certificate), dir.path()).unwrap_err().to_string();
    assert!(line.contains("SSL_CERT_FILE") && line.contains("no certificate"), "{line}");
}
