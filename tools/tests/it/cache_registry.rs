//! `kjit cache push` and `pull` with a small registry on this machine.

use crate::cache_command::{cache, filled, json, listed};
use crate::support::error_line;
use crate::support::registry::{Behaviour, RegistryServer};
use kjit_cache::SecretKey;
use std::os::unix::fs::PermissionsExt;

#[test]
fn packs_move_through_a_registry_with_the_right_signature_only() {
    let (dir, home) = filled();
    let server = RegistryServer::new(Behaviour {
        wants: Some("Basic YW5uYTpzZWNyZXQ=".to_owned()),
        ..Behaviour::default()
    });
    let key = dir.path().join("key");
    std::fs::write(&key, "01".repeat(32)).unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let key = key.to_str().unwrap();
    let public = SecretKey::from_bytes([1; 32]).public().to_string();
    let other = SecretKey::from_bytes([2; 32]).public().to_string();
    let name = format!("oci://{}/k/packs:v1", server.host);
    let run = |home: &std::path::Path, args: &[&str]| {
        let mut c = cache(home, args);
        c.env("KJIT_REGISTRY_USER", "anna").env("KJIT_REGISTRY_PASSWORD", "secret");
        c
    };
    let doc = json(&mut run(&home, &["push", &name, "--arch", "gfx1100", "--sign", key, "--json"]));
    assert_eq!((&doc["entries"], &doc["signer"]), (&2.into(), &public.clone().into()), "{doc}");
    assert_eq!(server.state().blobs.len(), 2);

    let new = dir.path().join("new");
    let line = error_line(&mut run(&new, &["pull", &name, "--signer", &other]), 1);
    assert!(line.contains(&name) && line.contains(&public), "{line}");
    assert!(!new.exists(), "a refused pack left something");
    let line = error_line(&mut cache(&new, &["pull", &name, "--signer", &public]), 1);
    assert!(line.contains("401") && line.contains("KJIT_REGISTRY_USER"), "{line}");
    let doc = json(&mut run(&new, &["pull", &name, "--signer", &public, "--json"]));
    assert_eq!((&doc["taken"], &doc["archs"]), (&2.into(), &"gfx1100".into()), "{doc}");
    assert_eq!(listed(&new, &[]), ["gfx1100 matvec", "gfx1100 norm"]);

    let missing = format!("oci://{}/k/packs:v2", server.host);
    let line = error_line(&mut run(&new, &["pull", &missing, "--signer", &public]), 1);
    assert!(line.contains(&missing) && line.contains("not there"), "{line}");
    // Half a login, an invalid name, and a missing signature option.
    let mut half = cache(&new, &["pull", &name, "--signer", &public]);
    let line = error_line(half.env("KJIT_REGISTRY_USER", "anna"), 1);
    assert!(line.contains("KJIT_REGISTRY_PASSWORD"), "{line}");
    error_line(&mut run(&new, &["pull", "oci://h/UPPER", "--signer", &public]), 2);
    error_line(&mut run(&new, &["pull", &name]), 2);
    error_line(&mut run(&home, &["push", &name]), 2);
}
