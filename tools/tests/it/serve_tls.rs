//! `kjit serve` with a certificate: curl trusts it, and clients that do not speak TLS, or send
//! nothing, do not delay other clients.

use crate::support::served::Served;
use crate::support::{error_line, kjit, smollm2};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// A certificate for `localhost` and 127.0.0.1, self-signed, valid until 2126.
fn file(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/data", name].iter().collect();
    path.display().to_string()
}

#[test]
fn curl_works_over_tls_and_others_are_dropped() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no curl here");
        return;
    }
    let (cert, key) = (file("localhost.pem"), file("localhost.key"));
    let mut server = Served::start(&["--tls-cert", &cert, "--tls-key", &key]);
    // Silent connections, and one that does not speak TLS, stay open.
    let silent: Vec<_> = (0..20).map(|_| server.connect()).collect();
    let mut plain = server.connect();
    plain.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let url = format!("https://localhost:{}", server.address.port());
    let curl = |path: &str, more: &[&str]| {
        let output = Command::new("curl")
            .args(["-sS", "--max-time", "60"])
            .args(more)
            .arg(format!("{url}{path}"))
            .output()
            .unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let trust = ["--cacert", cert.as_str()];
    let start = Instant::now();
    assert_eq!(curl("/health", &trust), (true, "{\"status\":\"ok\"}".to_owned()));
    assert_eq!(
        curl("/health", &[&trust[..], &["--tls-max", "1.2"]].concat()).1,
        "{\"status\":\"ok\"}"
    );
    assert!(start.elapsed() < Duration::from_secs(8), "nobody waits for those that say nothing");
    let body = r#"{"prompt": "The sky is", "max_tokens": 5, "stream": true}"#;
    let (good, said) = curl("/v1/completions", &[&trust[..], &["-d", body]].concat());
    assert!(good && said.ends_with("data: [DONE]\n\n"), "{said}");
    let (good, said) = curl("/health", &[]);
    assert!(!good && said.contains("certificate"), "{said}");
    let mut rest = vec![];
    let _ = plain.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    // If the handshake does not arrive in time, the connection is closed.
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
    }
    assert!(start.elapsed() < Duration::from_secs(40));
    assert_eq!(server.end(), Some(0));
}

#[test]
fn invalid_certificate_is_one_error_line() {
    let (cert, key) = (file("localhost.pem"), file("localhost.key"));
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.key");
    let serve = |flags: &[&str]| {
        let mut c = kjit();
        c.arg("serve").arg(smollm2()).args(["--port", "0"]).args(flags);
        c
    };
    for one in [["--tls-cert", cert.as_str()], ["--tls-key", key.as_str()]] {
        let output = serve(&one).assert().failure().code(2).get_output().clone();
        assert!(String::from_utf8_lossy(&output.stderr).contains("--tls-"), "{output:?}");
    }
    let gone = dir.path().join("none").display().to_string();
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    std::fs::write(
        &other,
        std::fs::read_to_string(&key).unwrap().replace("BEGIN PRIVATE", "BEGIN OTHER"),
    )
    .unwrap();
    let other = other.display().to_string();
    for (cert, key, says) in [
        (gone.as_str(), key.as_str(), gone.as_str()),
        (here, &key, "contains no certificate"),
        (&cert, here, "no private key"),
        (&cert, &other, "no private key"),
        (&cert, &file("other.key"), "do not go together"),
    ] {
        let line = error_line(&mut serve(&["--tls-cert", cert, "--tls-key", key]), 1);
        assert!(line.contains(says), "{line}");
    }
}
