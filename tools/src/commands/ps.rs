//! `kjit ps`: lists the running servers of this user.

use crate::args::{self, Shared};
use crate::columns::{self, Column};
use crate::report::say;
use kjit_server::{Running, running};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Time limit for the answer of a server. All servers are queried simultaneously.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

const TITLES: [&str; 8] =
    ["ADDRESS", "MODEL", "STATE", "PID", "DEVICE", "UPTIME", "RUNNING", "WAITING"];
const COLUMNS: [Column; 8] = [
    Column::Flexible,
    Column::Flexible,
    Column::Flexible,
    Column::Right,
    Column::Left,
    Column::Right,
    Column::Right,
    Column::Right,
];

/// Folders for the sockets of this user's servers, the preferred one first: in `$XDG_RUNTIME_DIR`,
/// then in the user's cache folder. Empty if the user has no home.
pub fn folders() -> Vec<PathBuf> {
    let Some(user) = directories::BaseDirs::new() else { return vec![] };
    let runtime = user.runtime_dir().filter(|folder| folder.is_dir());
    let cache = user.cache_dir().join("kjit/servers");
    runtime.map(|folder| folder.join("kjit")).into_iter().chain([cache]).collect()
}

pub fn ps(args: &args::Json, shared: &Shared) -> anyhow::Result<ExitCode> {
    let mut servers = vec![];
    for folder in folders() {
        match running(&folder, ANSWER_TIMEOUT) {
            Ok(found) => servers.extend(found),
            Err(_) if shared.quiet => {}
            Err(why) => {
                let folder = folder.display();
                say(format_args!("warning: {folder}: {why}: servers in it are not shown"));
            }
        }
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        writeln!(out, "{}", Value::Array(servers.iter().map(document).collect()))?;
    } else if !servers.is_empty() {
        let mut rows = vec![TITLES.map(str::to_owned).to_vec()];
        servers.iter().for_each(|server| rows.extend(lines(server)));
        columns::write(&COLUMNS, &rows, columns::width(), &mut out)?;
    } else if !shared.quiet {
        say("no servers are running: `kjit serve MODEL` starts one");
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn document(server: &Running) -> Value {
    match &server.said {
        Ok(said) => said.clone(),
        Err(why) => json!({ "pid": server.process, "error": why }),
    }
}

/// One row for each model of a server.
fn lines(server: &Running) -> Vec<Vec<String>> {
    let shown = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let said = match &server.said {
        Ok(said) => said,
        Err(why) => {
            let process = server.process.map_or_else(|| "-".to_owned(), |n| n.to_string());
            let row = ["-", "-", why, &process, "-", "-", "-", "-"];
            return vec![row.map(str::to_owned).to_vec()];
        }
    };
    let uptime = said.get("up_s").and_then(Value::as_f64).unwrap_or_default();
    let stopping = said.get("stopping").and_then(Value::as_bool) == Some(true);
    let of = |document: &Value, name| shown(document.get(name).unwrap_or(&Value::Null));
    let models = said.get("models").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let row = |model: &Value| {
        let state = if stopping { "stopping".to_owned() } else { of(model, "state") };
        vec![
            of(said, "address"),
            of(model, "name"),
            state,
            of(said, "pid"),
            of(model, "device"),
            lasted(uptime as u64),
            of(model, "running"),
            of(model, "waiting"),
        ]
    };
    models.iter().map(row).collect()
}

/// A duration in its two largest units.
fn lasted(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::{lasted, lines};
    use kjit_server::Running;
    use serde_json::json;

    #[test]
    fn uptimes_have_two_units() {
        let shown = [0, 59, 60, 3599, 3600, 86_399, 86_400, 200_000].map(lasted);
        assert_eq!(shown, ["0s", "59s", "1m00s", "59m59s", "1h00m", "23h59m", "1d00h", "2d07h"]);
    }

    #[test]
    fn server_rows_list_models_or_the_failure() {
        let model = |name, device| json!({ "name": name, "state": "ready", "device": device, "running": 1, "waiting": 2 });
        let said = json!({
            "pid": 7, "address": "http://127.0.0.1:1", "up_s": 61.5, "stopping": false,
            "models": [model("a", Some("cpu")), model("b", None)],
        });
        let rows = lines(&Running { process: Some(7), said: Ok(said) });
        let wanted = [
            "http://127.0.0.1:1 a ready 7 cpu 1m01s 1 2",
            "http://127.0.0.1:1 b ready 7 - 1m01s 1 2",
        ];
        assert_eq!(rows.iter().map(|row| row.join(" ")).collect::<Vec<_>>(), wanted);
        let rows = lines(&Running { process: Some(8), said: Err("no answer".into()) });
        assert_eq!(rows[0].join(" "), "- - no answer 8 - - - -");
        // A document of another version.
        assert!(lines(&Running { process: Some(9), said: Ok(json!({ "pid": 9 })) }).is_empty());
    }
}
