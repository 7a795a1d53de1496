//! Commands in the README and in `docs/` give the output that is shown.

use crate::support::smollm2;
use std::process::Command;

const PAGES: [&str; 4] = [
    include_str!("../../../README.md"),
    include_str!("../../../docs/run.md"),
    include_str!("../../../docs/embed.md"),
    include_str!("../../../docs/tune.md"),
];

/// Fenced code blocks that begin with this text.
fn blocks(begin: &str) -> Vec<&'static str> {
    let texts = PAGES.into_iter().flat_map(|page| page.split("\n```").skip(1).step_by(2));
    texts.filter_map(|b| b.strip_prefix('\n')).filter(|b| b.starts_with(begin)).collect()
}

/// The text without line breaks of the README.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn readme_commands_give_shown_output() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(smollm2().canonicalize().unwrap(), dir.path().join("model.gguf"))
        .unwrap();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_kjit"));
    let path =
        format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let shown: String = blocks("$ ").into_iter().map(|b| format!("\n{b}")).collect();
    let mut ran = 0;
    for example in shown.split("\n$ ").skip(1) {
        let (command, answer) = example.split_once('\n').unwrap();
        // These are measurements of large models on an H200. They are not repeated here.
        if command.contains("bench") {
            continue;
        }
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .current_dir(dir.path())
            .env("PATH", &path)
            .env_remove("KJIT_CACHE_DIR");
        let output = shell.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        // A line of … marks omitted output. Without such a line, all of the output is shown.
        let parts: Vec<String> = answer.split('…').map(joined).filter(|p| !p.is_empty()).collect();
        let (said, mut at) = (joined(&said), 0);
        for part in &parts {
            let found = said[at..].find(part.as_str());
            at += found.unwrap_or_else(|| panic!("{command}\nshown: {part}\nfound: {said}"))
                + part.len();
        }
        assert!(
            answer.contains('…') || parts == [said.as_str()],
            "{command}\nshown: {parts:?}\nfound: {said}"
        );
        ran += 1;
    }
    assert!(ran >= 8, "{ran} commands were found");
}
