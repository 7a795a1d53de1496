//! `--cache-remote`: a server of signed kernels, on simulated cards.

use crate::support::machine::{MODEL, Machine, RUN_SETTINGS, document, err, simulated};
use crate::support::model;
use kjit_cache::SecretKey;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

/// Serves the files of a folder. Returns the address.
fn serving(folder: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/k", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            reader.read_line(&mut line).unwrap();
            let name = line.split_whitespace().nth(1).unwrap_or_default();
            let name = name.strip_prefix("/k/").unwrap_or("none");
            let (status, body) = match std::fs::read(folder.join(name)) {
                Ok(body) => (200, body),
                Err(_) => (404, vec![]),
            };
            let head = format!(
                "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(&[head.as_bytes(), &body].concat());
        }
    });
    address
}

fn run(machine: &Machine, remote: &str, more: &[&str]) -> Output {
    let model = model(MODEL);
    let args = ["run", model.to_str().unwrap(), "--raw", "-p", "hello", "-n", "3", "--temp", "0"];
    let remote = ["--json", "--device", "rocm:0", "--cache-remote", remote];
    machine.kjit(args.iter().chain(RUN_SETTINGS).chain(&remote).chain(more))
}

fn bare(home: &Path) -> Machine {
    Machine { compilers: false, ..Machine::new("gfx1100", home.to_owned()) }
}

#[test]
fn kernels_come_from_a_server_with_the_right_signature_only() {
    let test = "cache_remote::kernels_come_from_a_server_with_the_right_signature_only";
    if !simulated(test) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let key = at("key");
    std::fs::write(&key, "05".repeat(32)).unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let public = SecretKey::from_bytes([5; 32]).public().to_string();
    let other = SecretKey::from_bytes([6; 32]).public().to_string();
    let maker = Machine::new("", at("maker"));
    document(&maker.warm("gfx1100"));
    let [folder, key] = [at("served"), key].map(|path| path.to_str().unwrap().to_owned());
    let each = ["cache", "export", "--each", "--json", "--sign", &key, "-o", &folder];
    let doc = document(&maker.kjit(each));
    assert!(doc["packs"].as_u64().unwrap() > 10 && doc["signer"] == public.as_str(), "{doc}");
    let address = serving(folder.into());

    // A machine without a compiler: only the server has its kernels.
    let output = run(&bare(&at("one")), &address, &["--cache-signer", &public]);
    let doc = document(&output);
    assert_eq!(doc["kernels"]["compiled"], 0, "{doc}");
    assert!(doc["kernels"]["cached"].as_u64().unwrap() > 10, "{doc}");
    assert!(!err(&output).contains("warning"), "{}", err(&output));
    // They are kept: the next start asks nobody.
    let doc = document(&run(&bare(&at("one")), "http://127.0.0.1:9", &["--cache-signer", &public]));
    assert_eq!(doc["kernels"]["compiled"], 0, "{doc}");
    // Another signature, and no key.
    let output = run(&bare(&at("two")), &address, &["--cache-signer", &other]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("not one of the trusted keys"), "{}", err(&output));
    let output = run(&bare(&at("two")), &address, &[]);
    assert!(err(&output).contains("--cache-signer"), "{}", err(&output));
    // A server that takes connections and says nothing holds a start up for one request's time.
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = (format!("http://{}", dead.local_addr().unwrap()), dead);
    let began = Instant::now();
    let output = run(&bare(&at("two")), &dead.0, &["--cache-signer", &public]);
    assert!(err(&output).contains("no answer within 5 s"), "{}", err(&output));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}
