//! Tests fetching from a hub with many faults of networks and servers.

use crate::it::support::server::{Fault, Repo, Server, noise, repo, sha256};
use kjit_hub::{Error, Event, Hub, Local, Pulled, Reference, Settings, Token};
use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const LEN: usize = 1_000_003;

fn settings(server: &Server, cache: &Path) -> Settings {
    Settings {
        pause: Duration::from_millis(1),
        patience: Duration::from_millis(500),
        // A hundred bytes are enough to start the count of tries again.
        min_rate: 100,
        window: Duration::from_secs(1),
        ..Settings::new(&server.endpoint, cache)
    }
}

fn hub(server: &Server, cache: &Path) -> Hub {
    Hub::new(settings(server, cache))
}

fn r(text: &str) -> Reference {
    text.parse().unwrap()
}

fn models() -> Repo {
    repo(
        "org/m-GGUF",
        &[
            ("README.md", b"read".to_vec()),
            ("m-Q4_K_M.gguf", noise(LEN, 1)),
            ("m-Q8_0-00001-of-00002.gguf", noise(70_001, 2)),
            ("m-Q8_0-00002-of-00002.gguf", noise(65, 3)),
            ("sub dir/m-F16.gguf", noise(33, 4)),
            ("empty-Q2_K.gguf", vec![]),
        ],
    )
}

fn pull(hub: &Hub, text: &str) -> Result<Pulled, Error> {
    hub.pull(&r(text), &|_| {})
}

/// The error, as one line.
#[track_caller]
fn said<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let line = result.expect_err("an error").to_string();
    assert!(!line.contains('\n') && !line.contains("hf_") && !line.contains("secret"), "{line}");
    line
}

fn read(local: &Local) -> Vec<Vec<u8>> {
    local.files.iter().map(|f| fs::read(f).unwrap()).collect()
}

#[test]
fn model_is_fetched_once_and_found_offline() {
    let (server, cache) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
    let hub = hub(&server, cache.path());
    let (files, commit) = (models().files, models().commit);
    assert!(hub.here(&r("hf:org/m-GGUF:q4_k_m")).unwrap().is_none());
    let pulled = pull(&hub, "hf:org/m-GGUF:q4_k_m").unwrap();
    assert_eq!((pulled.fetched, read(&pulled.local)), (LEN as u64, vec![files[1].1.clone()]));
    let folder = cache.path().join("models--org--m-GGUF");
    let link = folder.join("snapshots").join(&commit).join("m-Q4_K_M.gguf");
    assert_eq!(pulled.local.path(), link);
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("../../blobs").join(sha256(&files[1].1)));
    assert_eq!(fs::read_to_string(folder.join("refs/main")).unwrap(), commit);
    // No unfinished file remains.
    let blobs: Vec<_> =
        fs::read_dir(folder.join("blobs")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(blobs, [sha256(&files[1].1).as_str()]);
    server.forget();
    for text in [
        "hf:org/m-GGUF:Q4_K_M",
        "hf:org/m-GGUF",
        "hf:org/m-GGUF/m-Q4_K_M.gguf",
        "hf:org/m-GGUF@main:Q4_K_M",
    ] {
        assert_eq!(hub.get(&r(text), &|_| {}).unwrap().path(), link, "{text}");
    }
    assert_eq!(server.seen().len(), 0);
    // The hub is queried again, and sends no content.
    assert_eq!(pull(&hub, "hf:org/m-GGUF/m-Q4_K_M.gguf").unwrap().fetched, 0);
    assert_eq!((server.count("HEAD hub"), server.count("GET")), (1, 0));
}

#[test]
fn encoder_of_images_comes_and_goes_with_its_model() {
    let mut with = models();
    with.files.push(("mmproj-BF16.gguf".to_owned(), noise(50, 8)));
    with.files.push(("mmproj-F16.gguf".to_owned(), noise(40, 9)));
    let bytes = with.files.last().unwrap().1.clone();
    let (server, cache) = (Server::new(vec![with]), tempfile::tempdir().unwrap());
    // Only if it was asked for.
    let plain = pull(&hub(&server, cache.path()), "hf:org/m-GGUF:q4_k_m").unwrap();
    assert_eq!((plain.local.encoder, plain.fetched), (None, LEN as u64));
    let hub = Hub::new(Settings { encoders: true, ..settings(&server, cache.path()) });
    // A model in the cache needs no request, so nothing is fetched.
    let local = hub.get(&r("hf:org/m-GGUF:q4_k_m"), &|_| {}).unwrap();
    assert_eq!(local.encoder, None);
    let pulled = pull(&hub, "hf:org/m-GGUF:q4_k_m").unwrap();
    assert_eq!(pulled.fetched, 40);
    let encoder = pulled.local.encoder.unwrap();
    assert!(encoder.ends_with("mmproj-F16.gguf"));
    assert_eq!(fs::read(&encoder).unwrap(), bytes);
    assert_eq!(pulled.local.files.len(), 1);
    let local = hub.get(&r("hf:org/m-GGUF:q4_k_m"), &|_| {}).unwrap();
    assert_eq!(local.encoder, Some(encoder.clone()));
    // It stays with another model of the repository, and goes with the last one.
    let other = pull(&hub, "hf:org/m-GGUF:q8_0").unwrap();
    assert_eq!((other.local.encoder, other.fetched), (Some(encoder.clone()), 70_066));
    hub.remove(&r("hf:org/m-GGUF:q4_k_m")).unwrap();
    assert!(encoder.exists());
    let removed = hub.remove(&r("hf:org/m-GGUF:q8_0")).unwrap();
    assert!(!encoder.exists() && removed.files.contains("mmproj-F16.gguf"), "{removed:?}");
}

#[test]
fn split_parts_folders_and_empty_files_are_fetched_completely() {
    let (server, cache) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
    let hub = hub(&server, cache.path());
    let files = models().files;
    for (text, want) in [
        ("hf:org/m-GGUF:Q8_0", vec![2, 3]),
        ("hf:org/m-GGUF:m-Q8_0-00002-of-00002.gguf", vec![2, 3]),
        ("hf:org/m-GGUF/sub dir/m-F16.gguf", vec![4]),
        ("hf:org/m-GGUF:Q2_K", vec![5]),
    ] {
        let want: Vec<_> = want.into_iter().map(|i: usize| files[i].1.clone()).collect();
        assert_eq!(read(&pull(&hub, text).unwrap().local), want, "{text}");
        assert_eq!(read(&hub.here(&r(text)).unwrap().unwrap()), want, "{text}");
    }
    let deep = fs::read_link(hub.here(&r("hf:org/m-GGUF:F16")).unwrap().unwrap().path()).unwrap();
    assert_eq!(deep, Path::new("../../../blobs").join(sha256(&files[4].1)));
}

#[test]
fn cut_or_silent_connections_are_resumed() {
    let (server, cache) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
    let hub = hub(&server, cache.path());
    let never = Arc::new(AtomicBool::new(false));
    for fault in [
        Fault::Cut(10_000),
        Fault::Close,
        Fault::Cut(0),
        Fault::Wait(300_000, never),
        Fault::Cut(1),
        Fault::Status(503, ""),
    ] {
        server.fault("GET cdn", fault);
    }
    let again = RefCell::new(0);
    let count =
        |event: Event<'_>| *again.borrow_mut() += usize::from(matches!(event, Event::Again { .. }));
    let pulled = hub.pull(&r("hf:org/m-GGUF:Q4_K_M"), &count).unwrap();
    assert_eq!((server.faults_left(), *again.borrow()), (0, 6));
    assert_eq!(read(&pulled.local), [models().files[1].1.clone()]);
    // No byte was received twice.
    assert_eq!(pulled.fetched, LEN as u64);
    let ranges: Vec<_> =
        server.seen().into_iter().filter(|s| s.what.contains("GET cdn")).map(|s| s.range).collect();
    let from = |n: usize| Some(format!("bytes={n}-"));
    assert_eq!(
        ranges,
        [
            None,
            from(10_000),
            from(10_000),
            from(10_000),
            from(310_000),
            from(310_001),
            from(310_001)
        ]
    );
}

#[test]
fn partial_download_resumes_and_damaged_part_is_discarded() {
    let files = models().files;
    let blob = sha256(&files[1].1);
    let damaged = [&noise(600_000, 9)[..], b""].concat();
    for (left, comes, gets) in [
        (files[1].1[..600_000].to_vec(), LEN - 600_000, 1),
        (files[1].1.clone(), 0, 0),
        (damaged, LEN + LEN - 600_000, 2),
        (noise(LEN, 7), LEN, 1),
        (noise(LEN + 1, 7), LEN, 1),
        (vec![], LEN, 1),
    ] {
        let (server, cache) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
        let blobs = cache.path().join("models--org--m-GGUF/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{blob}.incomplete")), &left).unwrap();
        let pulled = pull(&hub(&server, cache.path()), "hf:org/m-GGUF:Q4_K_M").unwrap();
        assert_eq!(
            (pulled.fetched as usize, server.count("GET cdn")),
            (comes, gets),
            "{} left",
            left.len()
        );
        assert_eq!(read(&pulled.local), [files[1].1.clone()]);
    }
}

#[test]
fn host_without_ranges_is_read_from_start() {
    let (server, cache) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
    server.fault("GET cdn", Fault::Cut(500_000));
    server.fault("GET cdn", Fault::NoRange);
    let pulled = pull(&hub(&server, cache.path()), "hf:org/m-GGUF:Q4_K_M").unwrap();
    assert_eq!(read(&pulled.local), [models().files[1].1.clone()]);
}

#[test]
fn wrong_content_or_length_is_never_stored() {
    for (fault, word) in [
        (Fault::Wrong, "sha256"),
        (Fault::Longer(1), "1000004 bytes"),
        (Fault::Longer(-1), "1000002 bytes"),
    ] {
        let (server, cache) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
        let hub = hub(&server, cache.path());
        server.fault("GET cdn", fault);
        let line = said(pull(&hub, "hf:org/m-GGUF:Q4_K_M"));
        assert!(
            line.contains("m-Q4_K_M.gguf") && line.contains(word) && line.contains(&server.cdn),
            "{line}"
        );
        assert!(hub.here(&r("hf:org/m-GGUF:Q4_K_M")).unwrap().is_none());
        // The unused partial download does not block the next fetch.
        assert_eq!(
            read(&pull(&hub, "hf:org/m-GGUF:Q4_K_M").unwrap().local),
            [models().files[1].1.clone()]
        );
    }
}

#[test]
fn token_is_sent_only_to_the_hub() {
    let private = Repo { token: Some("hf_right".into()), ..models() };
    let (server, cache) = (Server::new(vec![private]), tempfile::tempdir().unwrap());
    let with = |token: Option<&str>| {
        Hub::new(Settings { token: token.map(Token::new), ..settings(&server, cache.path()) })
    };
    for (token, words) in [
        (None, &["no repository", "HF_TOKEN"][..]),
        (Some("hf_other"), &["no repository"]),
        (Some("hf_wrong"), &["refuses the token"]),
    ] {
        let line = said(pull(&with(token), "hf:org/m-GGUF:Q4_K_M"));
        assert!(
            words.iter().all(|w| line.contains(w)) && line.contains(&server.endpoint),
            "{line}"
        );
        let line = said(pull(&with(token), "hf:org/m-GGUF/m-Q4_K_M.gguf"));
        assert!(words.iter().all(|w| line.contains(w)), "{line}");
    }
    server.forget();
    let pulled = pull(&with(Some("hf_right")), "hf:org/m-GGUF:Q4_K_M").unwrap();
    assert_eq!(pulled.fetched, LEN as u64);
    for seen in server.seen() {
        let hub = seen.what.contains(" hub ");
        assert_eq!(seen.token.as_deref(), hub.then_some("Bearer hf_right"), "{seen:?}");
    }
    assert!(server.count("GET cdn") == 1 && server.count("hub") >= 3);
    assert!(!format!("{:?}", Token::new("hf_right")).contains("right"));
}

#[test]
fn missing_file_error_lists_available_files() {
    let gated = Repo { gated: true, ..repo("org/gated", &[("m-Q4_K_M.gguf", noise(9, 1))]) };
    let two = repo(
        "org/two",
        &[
            ("a-Q4_0.gguf", noise(9, 1)),
            ("b-Q4_0.gguf", noise(9, 2)),
            ("c-Q8_0-00001-of-00002.gguf", noise(9, 2)),
        ],
    );
    let none =
        repo("org/none", &[("config.json", b"{}".to_vec()), ("model.safetensors", noise(9, 1))]);
    let evil = repo(
        "org/evil",
        &[("../../../x-Q4_0.gguf", noise(9, 1)), ("/tmp/x-Q4_0.gguf", noise(9, 1))],
    );
    let moved = Repo { moved: Some("org/m-GGUF".into()), ..repo("old/name", &[]) };
    let (server, cache) =
        (Server::new(vec![models(), gated, two, none, evil, moved]), tempfile::tempdir().unwrap());
    let plain = hub(&server, cache.path());
    let token = Hub::new(Settings {
        token: Some(Token::new("hf_right")),
        ..settings(&server, cache.path())
    });
    for (hub, text, words) in [
        (&plain, "hf:org/nothing:Q4_0", &["no repository org/nothing", "HF_TOKEN"][..]),
        (&plain, "hf:org/nothing/x.gguf", &["no repository org/nothing"]),
        (
            &plain,
            "hf:org/m-GGUF:Q5_K_M",
            &["hf:org/m-GGUF:Q5_K_M", "m-Q4_K_M.gguf", "sub dir/m-F16.gguf"],
        ),
        (&plain, "hf:org/m-GGUF/other.gguf", &["other.gguf", "m-Q4_K_M.gguf"]),
        (&plain, "hf:org/m-GGUF@v9:Q4_K_M", &["no revision v9"]),
        (&plain, "hf:org/m-GGUF@v9:m-Q4_K_M.gguf", &["no revision v9"]),
        (&plain, "hf:org/gated:Q4_K_M", &["gated", "accept its terms", "set HF_TOKEN"]),
        (
            &token,
            "hf:org/gated:Q4_K_M",
            &["gated", "accept its terms", "with the account of this token"],
        ),
        (
            &plain,
            "hf:org/two:Q4_0",
            &["a-Q4_0.gguf, b-Q4_0.gguf", "for example hf:org/two/a-Q4_0.gguf"],
        ),
        (&plain, "hf:org/two", &["a-Q4_0.gguf, b-Q4_0.gguf, c-Q8_0"]),
        (&plain, "hf:org/two:Q8_0", &["c-Q8_0-00002-of-00002.gguf is missing"]),
        (
            &plain,
            "hf:org/two/c-Q8_0-00001-of-00002.gguf",
            &["c-Q8_0-00002-of-00002.gguf is missing"],
        ),
        (&plain, "hf:org/none", &["model.safetensors", "-GGUF", "hf download org/none"]),
        (&plain, "hf:org/evil:Q4_0", &["no such GGUF file"]),
    ] {
        let line = said(pull(hub, text));
        assert!(words.iter().all(|w| line.contains(w)), "{text}: {line}");
    }
    assert!(!cache.path().join("x-Q4_0.gguf").exists() && plain.list(&|_| {}).unwrap().is_empty());
    // A renamed repository is found by its old name.
    assert_eq!(pull(&plain, "hf:old/name:Q4_K_M").unwrap().fetched, LEN as u64);
}

#[test]
fn only_transient_http_errors_are_retried() {
    let (server, cache) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
    let hub = hub(&server, cache.path());
    for (part, fault) in [
        ("GET hub /api", Fault::Status(503, "")),
        ("GET hub /api", Fault::Status(429, "Retry-After: 0\r\n")),
        ("HEAD hub", Fault::Status(500, "")),
        ("HEAD hub", Fault::Close),
        ("GET hub /org", Fault::Status(502, "")),
        ("GET cdn", Fault::Status(429, "")),
    ] {
        server.fault(part, fault);
    }
    assert_eq!(pull(&hub, "hf:org/m-GGUF:Q4_K_M").unwrap().fetched, LEN as u64);
    assert_eq!(server.faults_left(), 0);
    let other = "hf:org/m-GGUF:Q8_0";
    for (fault, times, words) in [
        (Fault::Status(503, ""), 5, &["503", "5 times"][..]),
        (Fault::Status(429, "Retry-After: 3600\r\n"), 1, &["429", "3600 s", "HF_TOKEN"]),
        (Fault::Status(400, ""), 1, &["400"]),
        (Fault::Close, 5, &["cannot reach", "5 tries", "HF_ENDPOINT"]),
    ] {
        server.forget();
        (0..times).for_each(|_| server.fault("GET hub /api", fault.clone()));
        let line = said(pull(&hub, other));
        assert!(
            words.iter().all(|w| line.contains(w)) && line.contains(&server.endpoint),
            "{line}"
        );
        assert_eq!((server.faults_left(), server.seen().len()), (0, times));
    }
    (0..5).for_each(|_| server.fault("GET cdn", Fault::Cut(100)));
    (0..5).for_each(|_| server.fault("GET cdn", Fault::Cut(0)));
    let line = said(pull(&hub, other));
    assert!(
        line.contains("broke off 5 times")
            && line.contains("run the command again to resume")
            && line.contains(&server.cdn),
        "{line}"
    );
    // The received part is kept.
    server.forget();
    assert_eq!(pull(&hub, other).unwrap().fetched, 70_001 - 500 + 65);
}

#[test]
fn unreachable_or_invalid_host_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = |endpoint: String| {
        let patience = Duration::from_millis(500);
        Hub::new(Settings {
            pause: Duration::ZERO,
            patience,
            ..Settings::new(endpoint, cache.path())
        })
    };
    let line = said(pull(&nobody(format!("http://{closed}")), "hf:a/b:Q4_0"));
    assert!(line.contains("cannot reach http://127.0.0.1:") && line.contains("refused"), "{line}");
    let line = said(pull(&nobody("http://no-such-host.invalid".into()), "hf:a/b:Q4_0"));
    assert!(line.contains("cannot reach http://no-such-host.invalid"), "{line}");
    let line = said(pull(&nobody("http://a b".into()), "hf:a/b:Q4_0"));
    assert!(line.contains("HF_ENDPOINT"), "{line}");
    // The server speaks HTTP, but not the hub's API.
    let server = Server::new(vec![]);
    for (fault, word) in [
        (Fault::Status(200, "Content-Type: text/html\r\n"), "not JSON"),
        (Fault::To(format!("{}/again", server.endpoint)), "redirects"),
        (Fault::To("http://[".into()), "an invalid address"),
    ] {
        let loops = if word == "redirects" { 10 } else { 1 };
        (0..loops).for_each(|_| server.fault("GET hub", fault.clone()));
        let line = said(pull(&hub(&server, cache.path()), "hf:a/b:Q4_0"));
        assert!(line.contains(word) && line.contains("HF_ENDPOINT"), "{line}");
        assert_eq!(server.faults_left(), 0, "{word}");
    }
    // The hub does not identify the file.
    server.replace(repo("a/b", &[("x-Q4_0.gguf", noise(9, 1))]));
    server.fault("HEAD hub", Fault::Status(200, ""));
    let line = said(pull(&hub(&server, cache.path()), "hf:a/b:Q4_0"));
    assert!(line.contains("does not contain the commit"), "{line}");
}

#[test]
fn concurrent_fetches_download_once() {
    let (server, cache) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
    let go = Arc::new(AtomicBool::new(false));
    server.fault("GET cdn", Fault::Wait(1000, Arc::clone(&go)));
    let patient = || {
        Hub::new(Settings { patience: Duration::from_secs(20), ..settings(&server, cache.path()) })
    };
    let waited = std::thread::scope(|scope| {
        let ask = || {
            let waits = RefCell::new(false);
            let see = |e: Event<'_>| {
                if matches!(e, Event::Waiting { .. }) {
                    *waits.borrow_mut() = true;
                    go.store(true, SeqCst);
                }
            };
            let local = patient().pull(&r("hf:org/m-GGUF:Q4_K_M"), &see).unwrap().local;
            assert_eq!(read(&local), [models().files[1].1.clone()]);
            waits.into_inner()
        };
        let all: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        all.into_iter().map(|t| t.join().unwrap()).filter(|w| *w).count()
    });
    assert!((1..=3).contains(&waited), "{waited} waited");
    assert_eq!(server.count("GET cdn"), 1);
}

#[test]
fn offline_mode_sends_nothing_and_finds_local_files() {
    let (server, cache) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
    pull(&hub(&server, cache.path()), "hf:org/m-GGUF:Q8_0").unwrap();
    server.forget();
    let offline = Hub::new(Settings { offline: true, ..settings(&server, cache.path()) });
    assert_eq!(offline.get(&r("hf:org/m-GGUF:Q8_0"), &|_| {}).unwrap().files.len(), 2);
    let line = said(offline.get(&r("hf:org/m-GGUF:Q4_K_M"), &|_| {}));
    assert!(line.contains("HF_HUB_OFFLINE") && line.contains("hf:org/m-GGUF:Q4_K_M"), "{line}");
    said(pull(&offline, "hf:org/m-GGUF:Q8_0"));
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn new_commit_fetches_only_changed_files() {
    let (server, cache) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
    let hub = hub(&server, cache.path());
    pull(&hub, "hf:org/m-GGUF:Q4_K_M").unwrap();
    pull(&hub, "hf:org/m-GGUF:F16").unwrap();
    let mut next = Repo { commit: "0123456789012345678901234567890123456789".into(), ..models() };
    next.files[4].1 = noise(31, 5);
    server.replace(next.clone());
    // The local version is used until the hub is queried.
    assert_eq!(
        read(&hub.get(&r("hf:org/m-GGUF:F16"), &|_| {}).unwrap()),
        [models().files[4].1.clone()]
    );
    assert_eq!(pull(&hub, "hf:org/m-GGUF:F16").unwrap().fetched, 31);
    assert_eq!(
        read(&hub.here(&r("hf:org/m-GGUF:F16")).unwrap().unwrap()),
        [next.files[4].1.clone()]
    );
    // The other file is found in the old commit, and its content is not fetched again for the new
    // one.
    assert_eq!(hub.here(&r("hf:org/m-GGUF:Q4_K_M")).unwrap().unwrap().commit, models().commit);
    let now = pull(&hub, "hf:org/m-GGUF:Q4_K_M").unwrap();
    assert_eq!((now.fetched, now.local.commit), (0, next.commit.clone()));
    // The old version is still available by its commit.
    let old = format!("hf:org/m-GGUF@{}:F16", models().commit);
    assert_eq!(read(&hub.get(&r(&old), &|_| {}).unwrap()), [models().files[4].1.clone()]);
}

#[test]
fn slow_or_closing_host_is_given_up() {
    let (server, cache) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
    let slow = |min_rate| {
        let window = Duration::from_millis(200);
        Hub::new(Settings {
            min_rate,
            window,
            patience: Duration::from_secs(20),
            ..settings(&server, cache.path())
        })
    };
    // A byte every 20 ms: each wait is short, but the whole file would take a quarter of an hour.
    for part in ["GET hub /api", "GET cdn"] {
        server.fault(part, Fault::Drip(Duration::from_millis(20)));
        let line = said(pull(&slow(1000), "hf:org/m-GGUF:Q8_0"));
        assert!(
            ["B per second, less than 1.00 kB", "--min-rate"].iter().all(|w| line.contains(w)),
            "{line}"
        );
        assert_eq!(server.faults_left(), 0);
    }
    // With a lower minimum rate all 65 bytes arrive.
    server.fault("GET cdn", Fault::Drip(Duration::from_millis(2)));
    assert_eq!(pull(&slow(0), "hf:org/m-GGUF:F16").unwrap().fetched, 33);
    // Each try receives one byte; there are as many tries as bytes.
    (0..20).for_each(|_| server.fault("GET cdn", Fault::Cut(1)));
    let line = said(pull(&slow(1000), "hf:org/m-GGUF:Q4_K_M"));
    assert!(line.contains("broke off 5 times"), "{line}");
}

#[test]
fn long_repository_listings_use_bounded_memory_and_short_errors() {
    let long = "n".repeat(200);
    let of_many = (0..3000)
        .map(|n| (format!("{long}/m{n}-00001-of-99999.gguf"), vec![1]))
        .collect::<Vec<_>>();
    let files: Vec<(&str, Vec<u8>)> =
        of_many.iter().map(|(n, b)| (n.as_str(), b.clone())).collect();
    let (server, cache) =
        (Server::new(vec![repo("org/many", &files)]), tempfile::tempdir().unwrap());
    let hub = hub(&server, cache.path());
    for text in ["hf:org/many", "hf:org/many:Q4_0", &format!("hf:org/many/{}", files[7].0)] {
        server.forget();
        let line = said(pull(&hub, text));
        assert!(
            line.chars().count() <= 900
                && line.contains("00001-of-99999") | line.contains("is missing"),
            "{line}"
        );
        // There is no request for each part that a name claims.
        assert_eq!((server.seen().len(), server.count("GET hub /api")), (1, 1), "{text}");
    }
}

/// A cache that contains files of other users, and files that a fetch must not change.
#[test]
fn links_and_pipes_in_cache_cannot_redirect_a_fetch() {
    let (server, dir) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
    let (digest, commit) = (sha256(&models().files[1].1), models().commit);
    let precious = dir.path().join("precious");
    let partial = format!("models--org--m-GGUF/blobs/{digest}.incomplete");
    let link = format!("models--org--m-GGUF/snapshots/{commit}/m-Q4_K_M.gguf");
    let pipe = |path: &Path| {
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    for (n, (place, what)) in [
        (partial.as_str(), "link"),
        (&partial, "pipe"),
        (&partial, "hard link"),
        (&link, "pipe"),
        (&link, "link"),
        ("models--org--m-GGUF/refs/main", "link"),
        ("models--org--m-GGUF/refs/main", "pipe"),
        ("models--org--m-GGUF/refs/main", "huge"),
        (&format!("models--org--m-GGUF/blobs/{digest}"), "pipe"),
        (&format!("models--org--m-GGUF/blobs/{digest}"), "dangling"),
    ]
    .into_iter()
    .enumerate()
    {
        let cache = dir.path().join(format!("cache{n}"));
        let at = cache.join(place);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(&precious, "precious").unwrap();
        match what {
            "link" => std::os::unix::fs::symlink(&precious, &at).unwrap(),
            "dangling" => std::os::unix::fs::symlink("/nowhere", &at).unwrap(),
            "hard link" => fs::hard_link(&precious, &at).unwrap(),
            "huge" => fs::File::create(&at).and_then(|f| f.set_len(1 << 40)).unwrap(),
            _ => pipe(&at),
        }
        let hub = hub(&server, &cache);
        let removed = RefCell::new(0);
        let see =
            |e: Event<'_>| *removed.borrow_mut() += usize::from(matches!(e, Event::Removed { .. }));
        let local = hub.pull(&r("hf:org/m-GGUF:Q4_K_M"), &see).unwrap().local;
        assert_eq!(read(&local), [models().files[1].1.clone()], "{what} at {place}");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious", "{what} at {place}");
        assert_eq!(removed.into_inner(), usize::from(place == partial), "{what} at {place}");
        assert_eq!(
            fs::read_to_string(cache.join("models--org--m-GGUF/refs/main")).unwrap(),
            commit
        );
        assert_eq!(hub.list(&|_| {}).unwrap().len(), 1, "{what} at {place}");
        hub.remove(&r("hf:org/m-GGUF")).unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious", "{what} at {place}");
    }
    // The error names an invalid lock file.
    for what in ["link", "pipe"] {
        let cache = dir.path().join(format!("locked by a {what}"));
        let locks = cache.join(".locks/models--org--m-GGUF");
        fs::create_dir_all(&locks).unwrap();
        let lock = locks.join(format!("{digest}.lock"));
        if what == "link" {
            std::os::unix::fs::symlink(dir.path().join("new"), &lock).unwrap()
        } else {
            pipe(&lock)
        }
        let line = said(pull(&hub(&server, &cache), "hf:org/m-GGUF:Q4_K_M"));
        assert!(line.contains(".lock"), "{line}");
        assert!(!dir.path().join("new").exists());
    }
}

#[test]
fn unreadable_cache_folder_hides_no_other_model() {
    let (server, cache) = (Server::new(vec![models()]), tempfile::tempdir().unwrap());
    let hub = hub(&server, cache.path());
    pull(&hub, "hf:org/m-GGUF:Q8_0").unwrap();
    // Root can read everything, except a file with the name of a folder.
    for (repo, what) in
        [("models--a--b", "mode"), ("models--a--c", "file"), ("models--z--z", "pipe")]
    {
        let folder = cache.path().join(repo);
        match what {
            "file" => fs::write(&folder, "").unwrap(),
            "mode" => {
                fs::create_dir_all(folder.join("snapshots")).unwrap();
                fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o0))
                    .unwrap();
            }
            _ => {
                let at = folder.join("snapshots").join("0".repeat(40));
                fs::create_dir_all(&at).unwrap();
                let mode = rustix::fs::Mode::RWXU;
                let at = at.join("x.gguf");
                rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, mode, 0)
                    .unwrap();
            }
        }
    }
    let skipped = RefCell::new(vec![]);
    let see = |e: Event<'_>| {
        if let Event::Skipped { path, .. } = e {
            skipped.borrow_mut().push(path.to_string_lossy().into_owned());
        }
    };
    assert_eq!(hub.list(&see).unwrap().len(), 1);
    let skipped = skipped.into_inner();
    let told = |repo: &str| skipped.iter().any(|path| path.contains(repo));
    assert!(told("models--a--c") && told("models--z--z"), "{skipped:?}");
    let is_root = fs::read_dir(cache.path().join("models--a--b")).is_ok();
    assert!(is_root || told("models--a--b"), "{skipped:?}");
}
