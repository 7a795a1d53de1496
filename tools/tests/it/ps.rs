//! `kjit ps`: the running servers of a user. This file also tests tables and help that fit the
//! terminal.

use crate::support::served::{Served, command};
use crate::support::terminal::terminal;
use crate::support::{model, smollm2};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const TINY: &str = "tiny/tiny-llama-q4_k_m.gguf";

/// The command, with the sockets of its servers below `home`.
fn kjit(home: &Path) -> Command {
    let mut command = command();
    command.env("XDG_RUNTIME_DIR", home.join("run")).env("XDG_CACHE_HOME", home.join("cache"));
    command
}

fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("run")).unwrap();
    home
}

fn server(home: &Path, flags: &[&str]) -> Served {
    Served::with(kjit(home).arg("serve").arg(model(TINY)), flags)
}

fn ps(home: &Path, flags: &[&str]) -> Output {
    let output = kjit(home).arg("ps").args(flags).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

fn listed(home: &Path) -> Vec<Value> {
    serde_json::from_slice(&ps(home, &["--json"]).stdout).unwrap()
}

#[test]
fn running_servers_are_listed_until_exit() {
    let home = home();
    let home = home.path();
    assert_eq!(listed(home), Vec::<Value>::new());
    let none = ps(home, &[]);
    assert!(none.stdout.is_empty());
    assert!(String::from_utf8_lossy(&none.stderr).contains("no servers are running"));

    // The socket needs no key and no certificate.
    let keys = home.join("keys");
    std::fs::write(&keys, "secret-key-of-this-test\n").unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let [certificate, key] =
        ["localhost.pem", "localhost.key"].map(|name| data.join(name).to_str().unwrap().to_owned());
    let secured = ["--api-key-file", keys.to_str().unwrap(), "--tls-cert", &certificate];
    let mut first = server(home, &[&secured[..], &["--tls-key", &key, "--alias", "one"]].concat());
    let mut second = server(home, &["--alias", "two"]);

    let mut found = listed(home);
    found.sort_by_key(|server| server["models"][0]["name"].to_string());
    for ((server, served), name) in found.iter().zip([&first, &second]).zip(["one", "two"]) {
        let scheme = if name == "one" { "https" } else { "http" };
        assert_eq!(server["address"], format!("{scheme}://{}", served.address));
        assert_eq!(server["pid"], served.child.id());
        assert!(server["up_s"].as_f64().unwrap() >= 0.0 && server["stopping"] == false);
        let model = &server["models"][0];
        assert_eq!((&model["name"], &model["state"]), (&name.into(), &"ready".into()));
        assert_eq!((&model["device"], &model["running"]), (&"cpu".into(), &0.into()));
        assert_eq!(model["waiting"], 0);
    }
    assert_eq!(found.len(), 2);

    let table = String::from_utf8(ps(home, &[]).stdout).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[0].starts_with("ADDRESS") && lines[0].ends_with("WAITING"), "{table}");
    let row = lines.iter().find(|line| line.contains(" two ")).unwrap();
    let (address, pid) = (second.address.to_string(), second.child.id().to_string());
    assert!(row.contains(&address) && row.contains(&pid), "{table}");

    let sockets = || std::fs::read_dir(home.join("run/kjit")).unwrap().count();
    let mode = std::fs::metadata(home.join("run/kjit")).unwrap().permissions().mode();
    assert_eq!((sockets(), mode & 0o777), (2, 0o700));
    // A server that ends removes its socket. The next `ps` removes the socket of a killed server.
    assert_eq!(first.end(), Some(0));
    assert_eq!((sockets(), listed(home).len()), (1, 1));
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    assert_eq!((sockets(), listed(home).len(), sockets()), (1, 0, 0));
}

#[test]
fn running_request_is_counted() {
    let home = home();
    let home = home.path();
    let served = Served::with(kjit(home).arg("serve").arg(smollm2()), &[]);
    let body = serde_json::json!({
        "prompt": "one two three", "max_tokens": 900, "temperature": 0, "stream": true,
        "ignore_eos": true,
    });
    let body = body.to_string();
    let head = crate::support::served::request("POST", "/v1/completions", &[], body.as_bytes());
    let mut stream = served.connect();
    std::io::Write::write_all(&mut stream, format!("{head}{body}").as_bytes()).unwrap();
    let begun = std::time::Instant::now();
    while listed(home)[0]["models"][0]["running"] != 1 {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", listed(home));
    }
}

#[test]
fn shared_folder_is_ignored() {
    let home = home();
    let home = home.path();
    let folder = home.join("run/kjit");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    // Without that folder, the user's cache folder is used.
    let served = server(home, &[]);
    assert!(served.warned.is_empty(), "{:?}", served.warned);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(home.join("cache/kjit/servers")).unwrap().count(), 1);
    let output = ps(home, &["--json"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("run/kjit: others may write to it"), "{said}");
    let found: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found[0]["pid"], served.child.id());
    // If both folders cannot be used, the server prints a warning and serves.
    drop(served);
    let servers = home.join("cache/kjit/servers");
    std::fs::set_permissions(&servers, std::fs::Permissions::from_mode(0o777)).unwrap();
    let served = server(home, &[]);
    assert!(served.warned[0].contains("kjit ps does not show this server"), "{:?}", served.warned);
}

#[test]
fn tables_fit_the_terminal_and_are_complete_elsewhere() {
    let home = home();
    let home = home.path();
    let _served = server(home, &["--alias", "a-name-that-is-much-too-long-for-a-narrow-terminal"]);
    let model = model(TINY);
    for arguments in [&["ps"][..], &["inspect", model.to_str().unwrap()]] {
        let whole = kjit(home).args(arguments).output().unwrap();
        let whole = String::from_utf8(whole.stdout).unwrap();
        assert!(whole.lines().any(|line| line.chars().count() > 60), "{whole}");
        let (person, program) = terminal(60);
        let mut child = kjit(home).args(arguments).stdout(program).spawn().unwrap();
        let shown = person.rest();
        assert!(child.wait().unwrap().success());
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), whole.lines().count(), "{shown}");
        assert!(lines.iter().any(|line| line.contains('…')), "{shown}");
        // The last line of `inspect` is a sentence, not a row of a table.
        for line in lines.iter().filter(|line| !line.starts_with("memory: ")) {
            assert!(line.chars().count() <= 60, "{line}");
        }
    }
}

#[test]
fn help_fits_the_terminal_and_respects_no_color() {
    let help = |columns: u16, variable: (&str, &str)| {
        let (person, program) = terminal(columns);
        let mut command = command();
        command.args(["run", "--help"]).env_remove("NO_COLOR").env("TERM", "xterm");
        let mut child = command.env(variable.0, variable.1).stdout(program).spawn().unwrap();
        drop(command);
        let shown = person.rest();
        assert!(child.wait().unwrap().success());
        shown
    };
    let bold = "\x1b[1m";
    let shown = help(70, ("NO_COLOR", ""));
    assert!(shown.contains(bold), "{shown}");
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let shown = help(70, variable);
        assert!(!shown.contains('\x1b'), "{shown}");
        let before = shown.split("Examples:").next().unwrap();
        for line in before.lines() {
            assert!(line.chars().count() <= 70, "{line}");
        }
    }
}
