//! Packs in a registry: upload and download, logins, tokens, storage hosts, and wrong contents.

use crate::it::support::registry::{Behaviour, RegistryServer};
use crate::it::support::server::{noise, sha256};
use kjit_hub::Settings;
use kjit_hub::registry::{Artefact, Login, PACK_TYPE, Registry, RegistryError};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::time::Duration;

fn registry(server: &RegistryServer, tag: &str, login: Option<Login>) -> Registry {
    let artefact: Artefact = format!("oci://{}/k/packs:{tag}", server.host).parse().unwrap();
    let settings = Settings {
        patience: Duration::from_secs(5),
        ..Settings::new("http://127.0.0.1:9", "/nowhere")
    };
    Registry::new(&settings, &artefact, login).unwrap()
}

fn file(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

fn pulled(from: &mut Registry) -> Result<Vec<u8>, RegistryError> {
    let mut to = tempfile::tempfile().unwrap();
    from.pull(&mut to)?;
    let mut content = vec![];
    to.rewind().unwrap();
    to.read_to_end(&mut content).unwrap();
    Ok(content)
}

fn push(to: &mut Registry, content: &[u8]) -> Result<String, RegistryError> {
    to.push(&mut file(content), &BTreeMap::from([("archs".to_owned(), "gfx1100".to_owned())]))
}

#[test]
fn a_pack_comes_back_and_is_sent_once() {
    let server = RegistryServer::new(Behaviour::default());
    for (n, seed) in [(0, 1), (1, 2), (300_000, 3)] {
        let content = noise(n, seed);
        let mut there = registry(&server, "v1", None);
        let digest = push(&mut there, &content).unwrap();
        let manifest = server.state().manifests["v1"].clone();
        assert_eq!(digest, format!("sha256:{}", sha256(&manifest)));
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest["artifactType"], PACK_TYPE);
        assert_eq!(manifest["layers"][0]["size"], n);
        assert_eq!(manifest["annotations"]["archs"], "gfx1100");
        assert_eq!(pulled(&mut there).unwrap(), content);
    }
    // Blobs that are there are not sent again: three packs and the configuration.
    let sent = server.seen("PUT registry /v2/k/packs/blobs/uploads/").len();
    assert_eq!(sent, 4);
    push(&mut registry(&server, "v2", None), &noise(300_000, 3)).unwrap();
    assert_eq!(server.seen("PUT registry /v2/k/packs/blobs/uploads/").len(), sent);
    let missing = pulled(&mut registry(&server, "v3", None)).unwrap_err();
    assert!(matches!(&missing, RegistryError::NotThere(what) if what.ends_with("packs:v3")));
}

#[test]
fn logins_go_to_the_registry_and_not_to_its_storage() {
    let wants = Some("Basic YW5uYTpzZWNyZXQ=".to_owned());
    let server = RegistryServer::new(Behaviour { wants, storage: true, ..Behaviour::default() });
    let login = || Some(Login::new("anna", "secret"));
    push(&mut registry(&server, "v1", login()), b"content").unwrap();
    assert_eq!(pulled(&mut registry(&server, "v1", login())).unwrap(), b"content");
    let storage = server.seen("GET storage /signed/");
    assert!(storage.len() == 1 && storage[0].1.is_empty(), "{storage:?}");
    for wrong in [None, Some(Login::new("anna", "wrong"))] {
        let refused = push(&mut registry(&server, "v1", wrong), b"other").unwrap_err();
        assert!(matches!(refused, RegistryError::Login { status: 401, .. }), "{refused}");
        assert!(refused.to_string().contains("KJIT_REGISTRY_PASSWORD"));
    }
}

#[test]
fn a_token_service_is_asked_once() {
    let server = RegistryServer::new(Behaviour {
        wants: Some("Bearer abc".to_owned()),
        tokens_for: Some("Basic YW5uYTpzZWNyZXQ=".to_owned()),
        ..Behaviour::default()
    });
    let mut there = registry(&server, "v1", Some(Login::new("anna", "secret")));
    push(&mut there, b"content").unwrap();
    assert_eq!(pulled(&mut there).unwrap(), b"content");
    assert_eq!(server.seen("GET registry /token").len(), 1);
    let refused = pulled(&mut registry(&server, "v1", None)).unwrap_err();
    assert!(matches!(refused, RegistryError::Login { what: "a token", .. }), "{refused}");
}

#[test]
fn other_contents_and_other_artefacts_are_refused() {
    let server = RegistryServer::new(Behaviour::default());
    push(&mut registry(&server, "v1", None), &noise(5000, 7)).unwrap();
    server.state().behaviour.wrong = true;
    let wrong = pulled(&mut registry(&server, "v1", None)).unwrap_err().to_string();
    assert!(wrong.contains("does not match its digest"), "{wrong}");
    server.state().behaviour.wrong = false;
    let good = String::from_utf8(server.state().manifests["v1"].clone()).unwrap();
    let digest = format!("sha256:{}", sha256(&noise(5000, 7)));
    for (from, to, says) in [
        ("\"size\":5000", "\"size\":4999", "does not match its digest"),
        ("\"size\":5000", "\"size\":5001", "does not match its digest"),
        ("\"size\":5000", "\"size\":-1", "no size"),
        (digest.as_str(), "sha256:../../x", "no SHA-256"),
        (PACK_TYPE, "text/plain", "not one layer"),
        ("{", "", "its manifest"),
    ] {
        let bad = good.replacen(from, to, if says == "its manifest" { 1 } else { usize::MAX });
        assert_ne!(bad, good, "{from}");
        server.state().manifests.insert("bad".to_owned(), bad.into_bytes());
        let error = pulled(&mut registry(&server, "bad", None)).unwrap_err().to_string();
        assert!(error.contains(says), "{from} {to}: {error}");
    }
}

#[test]
fn a_dead_registry_is_an_error_with_its_name() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    drop(listener);
    let artefact: Artefact = format!("oci://{host}/k/packs").parse().unwrap();
    let settings = Settings::new("http://127.0.0.1:9", "/nowhere");
    let mut there = Registry::new(&settings, &artefact, None).unwrap();
    let error = pulled(&mut there).unwrap_err();
    assert!(matches!(&error, RegistryError::Unreachable { host: h, .. } if h.contains(&host)));
}
