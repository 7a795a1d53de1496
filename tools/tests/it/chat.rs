//! The chat, on a terminal.

use crate::serve_images::encoder;
use crate::support::smollm2;
use crate::support::terminal::{Person, terminal};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn chat(terminal: &OwnedFd, stdout: impl Into<Stdio>, more: &[&str]) -> Child {
    let nowhere = concat!(env!("CARGO_TARGET_TMPDIR"), "/chat-state");
    chat_with(Path::new(nowhere), terminal, stdout, more)
}

/// A chat with its history below `state`.
fn chat_with(state: &Path, terminal: &OwnedFd, stdout: impl Into<Stdio>, more: &[&str]) -> Child {
    // With a time limit, so that a chat that prints unexpected text fails instead of hanging.
    Command::new("timeout")
        .args([
            "--foreground",
            "60",
            env!("CARGO_BIN_EXE_kjit"),
            "run",
            "--device",
            "cpu",
            "--temp",
            "0",
        ])
        .args(if more.contains(&"-n") { &[][..] } else { &["-n", "24"] })
        .env("TERM", "xterm")
        .env("XDG_STATE_HOME", state)
        .env_remove("NO_COLOR")
        .arg(smollm2())
        .args(more)
        .stdin(terminal.try_clone().unwrap())
        .stderr(terminal.try_clone().unwrap())
        .stdout(stdout)
        .spawn()
        .unwrap()
}

#[test]
fn chat_keeps_history_until_clear_and_shows_statistics() {
    let (mut person, program) = terminal(0);
    let mut child = chat(&program, program.try_clone().unwrap(), &[]);
    drop(program);
    person.sees("> ");
    for (line, wanted) in [
        ("/stats", "nothing was generated yet"),
        ("Hi", ""),
        ("/stats", "prompt 31 tokens"),
        // The history is not computed again. After /clear only the system message is left.
        ("And now?", ""),
        ("/stats", "prompt 14 tokens"),
        ("/clear", ""),
        ("And now?", ""),
        ("/stats", "prompt 9 tokens"),
        ("/nonsense", "no command '/nonsense'"),
    ] {
        person.types(line);
        // The terminal echoes the typed text first.
        person.sees(line);
        person.sees(wanted);
        // Text that is typed before the next prompt appears would be lost.
        person.sees("> ");
    }
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn image_stands_before_the_next_text_of_a_chat() {
    let folder = tempfile::tempdir().unwrap();
    let encoder = encoder(folder.path());
    let (mut person, program) = terminal(0);
    let mut child = chat(&program, program.try_clone().unwrap(), &["--mmproj", &encoder]);
    drop(program);
    person.sees("> ");
    let picture = "../tests/data/vision/61x37.png";
    for (line, wanted) in [
        ("/image no-such.png", "cannot read no-such.png"),
        ("/image ../Cargo.toml", "no PNG, JPEG or WebP"),
        ("/image", "give a file"),
        (&format!("/image {picture}"), "16 rows before the next text"),
        // 31 tokens without the image. The text is cut at the image, which may add one or two.
        ("Hi", ""),
        ("/stats", "prompt 4"),
        ("/clear", ""),
        ("Hi", ""),
        ("/stats", "prompt "),
    ] {
        person.types(line);
        person.sees(line);
        person.sees(wanted);
        person.sees("> ");
    }
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let (mut person, program) = terminal(0);
    let mut child = chat(&program, program.try_clone().unwrap(), &[]);
    drop(program);
    person.sees("> ");
    person.types("/image a.png");
    person.sees("the model reads text only");
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn chat_without_terminal_is_refused_with_empty_stdout() {
    let (mut person, program) = terminal(0);
    let child = chat(&program, Stdio::piped(), &[]);
    drop(program);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    person.sees("error: no prompt, and no terminal on stdout");
}

#[test]
fn full_chat_drops_oldest_turns_with_note() {
    let (mut person, program) = terminal(0);
    let mut child = chat(&program, program.try_clone().unwrap(), &["-c", "128"]);
    drop(program);
    person.sees("> ");
    let mut forgotten = 0;
    for turn in 0..8 {
        let line = format!("Say the number {turn}.");
        person.types(&line);
        person.sees(&line);
        forgotten += person.passes("> ").matches("oldest messages are forgotten").count();
    }
    assert!((1..8).contains(&forgotten), "{forgotten}");
    // A message that is too long alone is refused, and the history stays as it was.
    person.types(&"word ".repeat(200));
    person.sees("the context of 128");
    person.sees("> ");
    person.types("And now?");
    person.sees("And now?");
    person.sees("> ");
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A chat in a new terminal, at its first prompt.
fn begun(state: &Path, columns: u16, more: &[&str]) -> (Person, Child) {
    let (mut person, program) = terminal(columns);
    let child = chat_with(state, &program, program.try_clone().unwrap(), more);
    drop(program);
    person.sees("> ");
    (person, child)
}

#[test]
fn truncated_answer_is_noted_and_chat_continues() {
    let state = tempfile::tempdir().unwrap();
    let (mut person, mut child) = begun(state.path(), 0, &[]);
    for (line, wanted) in [
        ("/continue", "the last answer was not cut"),
        ("Write a long story about a fox.", "cut: after 24 tokens (-n): /continue continues it"),
        // Generated tokens are not computed again.
        ("/continue", "cut: after 24 tokens (-n): /continue continues it"),
        ("/stats", "prompt 1 tokens"),
        ("/clear", ""),
        ("/continue", "the last answer was not cut"),
    ] {
        person.types(line);
        person.sees(line);
        person.sees(wanted);
        person.sees("> ");
    }
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn continued_answer_equals_uninterrupted_one() {
    let state = tempfile::tempdir().unwrap();
    let question = "Write a long story about a fox.";
    let said = |more: &[&str], cuts: usize| {
        let (mut person, mut child) = begun(state.path(), 0, more);
        let mut text = String::new();
        for line in [question, "/continue"].iter().take(cuts) {
            person.types(line);
            person.sees(line);
            text += &person.passes("note: the answer was cut");
            person.sees("> ");
        }
        person.types("/bye");
        assert_eq!(child.wait().unwrap().code(), Some(0));
        text.replace("note: the answer was cut", " ").split_whitespace().collect::<String>()
    };
    let plain = |text: String| -> String {
        // The text without the terminal codes around typed text.
        let text = text.replace("[?2004l", "").replace("[?2004h", "").replace("[?2026l", "");
        text.replace("[?2026h", "").chars().filter(|c| c.is_alphabetic()).collect()
    };
    let (two, one) = (plain(said(&["-n", "24"], 2)), plain(said(&["-n", "48"], 1)));
    assert!(two.len() > 40 && two == one, "{two}\n{one}");
}

#[test]
fn help_lists_commands_and_double_slash_starts_text() {
    let state = tempfile::tempdir().unwrap();
    let (mut person, mut child) = begun(state.path(), 0, &[]);
    for help in ["/help", "/?"] {
        person.types(help);
        person.sees(help);
        let list = person.passes("> ");
        for command in ["/clear", "/continue", "/stats", "/bye", "//TEXT", "Alt-Enter"] {
            assert!(list.contains(command), "{command}: {list}");
        }
    }
    person.types("//etc?");
    person.sees("//etc?");
    person.sees("> ");
    // There are statistics, so a message was answered.
    person.types("/stats");
    person.sees("answer ");
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn multiline_input_is_one_message_and_history_is_private() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("kjit/history");
    let (mut person, mut child) = begun(state.path(), 0, &["-n", "1"]);
    for (typed, last) in [
        // Alt-Enter is sent as Escape and Enter.
        ("first\x1b\rsecond", "second"),
        ("\"\"\"third\rfourth\"\"\"", "fourth"),
        ("/stats", "prompt"),
    ] {
        person.types(typed);
        person.sees(last);
        person.sees("> ");
    }
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let kept = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = kept.lines().skip(1).collect();
    assert_eq!(lines, ["first\\nsecond", "\"\"\"third\\nfourth\"\"\""], "{kept}");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    // The history is available in the next chat.
    let (mut person, mut child) = begun(state.path(), 0, &["-n", "1"]);
    person.types("\x1b[A");
    person.sees("third");
    person.sees("note: the answer was cut");
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // An error of the history is reported, and the chat continues.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let (mut person, mut child) = begun(state.path(), 0, &["-n", "1"]);
    person.types("fifth");
    person.sees("note: the history is not saved: ");
    person.sees("> ");
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn answers_wrap_at_words() {
    let state = tempfile::tempdir().unwrap();
    let template = state.path().join("repeat.jinja");
    // The model continues this text as its own answer.
    std::fs::write(&template, "# Heading\n\nSome **bold text** and `code` and **").unwrap();
    let template = ["--template", template.to_str().unwrap(), "-n", "60"];
    let (mut person, mut child) = begun(state.path(), 30, &template);
    person.types("x");
    person.sees("x");
    let shown = person.passes("note: the answer was cut");
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let lines: Vec<&str> = shown.lines().map(|line| line.trim_end_matches('\r')).collect();
    assert!(lines.len() > 4, "{shown:?}");
    let visible =
        |line: &str| line.replace("\x1b[0m", "").replace("\x1b[1m", "").replace("\x1b[2m", "");
    let answer = lines.iter().skip(1).take(lines.len() - 2);
    for line in answer {
        let line = visible(line);
        assert!(line.chars().count() <= 30 && !line.ends_with(' '), "{line:?} of {shown:?}");
    }
}
