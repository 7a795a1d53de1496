//! Translates arguments of llama.cpp and ollama into arguments of kjit. Flags with the same meaning
//! are renamed. Flags for automatic decisions of kjit are ignored, with one note.

use crate::args::Cli;
use clap::{ArgAction, Command, CommandFactory};
use std::collections::BTreeSet;
use std::ffi::OsString;

/// Ignored flags, with their possible values. kjit places layers by free memory and always uses
/// flash attention and maps files. `kjit run MODEL` without a prompt is a chat.
const IGNORED_FLAGS: &[(&[&str], Value)] = &[
    (&["-ngl", "--n-gpu-layers", "--gpu-layers"], Value::Always),
    (&["-fa", "--flash-attn"], Value::OneOf(&["on", "off", "auto", "0", "1"])),
    (&["-cnv", "--conversation", "--mlock", "--no-mmap"], Value::None),
];

#[derive(Clone, Copy)]
enum Value {
    None,
    Always,
    OneOf(&'static [&'static str]),
}

/// Flags that name the model, and the prefix that the name gets.
const MODEL: &[(&[&str], &str)] = &[(&["-m", "--model"], ""), (&["-hf", "--hf-repo"], "hf:")];

/// The translated arguments, starting with the program's name, and a note about ignored arguments.
pub fn translate(arguments: Vec<OsString>) -> (Vec<OsString>, Option<String>) {
    let cli = Cli::command();
    let Some((at, command)) = subcommand(&cli, &arguments) else { return (arguments, None) };
    let valued = valued(&cli, command);
    let known = |word: &str| {
        let long = word.strip_prefix("--");
        long.is_some() && command.get_arguments().any(|a| a.get_long() == long)
    };
    let takes_model = command.get_positionals().any(|a| a.get_id().as_str().starts_with("model"));
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    let mut left_out: Vec<String> = Vec::new();
    let mut rest = arguments.into_iter();
    head.extend(rest.by_ref().take(at + 1));
    let mut rest = rest.peekable();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy().into_owned();
        let (word, inside) =
            text.split_once('=').map_or((text.as_str(), None), |(w, v)| (w, Some(v)));
        if word == "--" {
            tail.push(argument);
            tail.extend(rest);
            break;
        }
        if let Some((_, value)) = IGNORED_FLAGS.iter().find(|(words, _)| words.contains(&word)) {
            let follows = rest.peek().is_some_and(|next| match value {
                Value::None => false,
                Value::Always => true,
                Value::OneOf(words) => words.iter().any(|w| next == w),
            });
            if inside.is_none() && follows {
                rest.next();
            }
            left_out.push(word.to_owned());
            continue;
        }
        let names = MODEL.iter().find(|(words, _)| words.contains(&word));
        if let Some((_, begin)) = names.filter(|_| takes_model && !known(word)) {
            let name = inside.map(OsString::from).or_else(|| rest.next());
            let Some(name) = name else {
                tail.push(argument);
                break;
            };
            let mut model =
                OsString::from(if name.to_string_lossy().starts_with("hf:") { "" } else { begin });
            model.push(name);
            head.push(model);
            continue;
        }
        if word == "-sys" {
            tail.push("--system".into());
            tail.extend(rest.next());
            continue;
        }
        let takes_next = inside.is_none() && valued.contains(word);
        tail.push(argument);
        if takes_next {
            tail.extend(rest.next());
        }
    }
    head.extend(tail);
    let note = (!left_out.is_empty()).then(|| {
        format!(
            "note: {} ignored: kjit decides this automatically (--memory SIZE limits GPU memory)",
            left_out.join(", ")
        )
    });
    (head, note)
}

/// Index of the command's name in the arguments, and the command.
fn subcommand<'c>(cli: &'c Command, arguments: &[OsString]) -> Option<(usize, &'c Command)> {
    let valued = valued(cli, cli);
    let mut at = 1;
    while let Some(argument) = arguments.get(at) {
        let text = argument.to_str()?;
        if !text.starts_with('-') {
            return Some((at, cli.find_subcommand(text)?));
        }
        at += if valued.contains(text) { 2 } else { 1 };
    }
    None
}

/// Flags that use the next argument as their value.
fn valued(cli: &Command, command: &Command) -> BTreeSet<String> {
    let all = cli.get_arguments().chain(command.get_arguments());
    let valued = all.filter(|a| matches!(a.get_action(), ArgAction::Set | ArgAction::Append));
    valued
        .flat_map(|a| {
            let long = a
                .get_long_and_visible_aliases()
                .unwrap_or_default()
                .into_iter()
                .map(|l| format!("--{l}"));
            let hidden =
                a.get_all_aliases().unwrap_or_default().into_iter().map(|l| format!("--{l}"));
            let short = a
                .get_short_and_visible_aliases()
                .unwrap_or_default()
                .into_iter()
                .map(|s| format!("-{s}"));
            long.chain(hidden).chain(short).collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::translate;

    fn words(line: &str) -> (String, Option<String>) {
        let (arguments, note) = translate(line.split(' ').map(Into::into).collect());
        let words: Vec<_> = arguments.into_iter().map(|a| a.into_string().unwrap()).collect();
        (words.join(" "), note)
    }

    #[test]
    fn llama_cpp_flags_are_translated() {
        for (theirs, ours) in [
            ("kjit run -m x.gguf -p hi", "kjit run x.gguf -p hi"),
            ("kjit run -p hi --model=x.gguf", "kjit run x.gguf -p hi"),
            ("kjit -v run -p hi -m x.gguf", "kjit -v run x.gguf -p hi"),
            ("kjit --device cpu bench -m x.gguf -p 4", "kjit --device cpu bench x.gguf -p 4"),
            ("kjit run -hf a/b:Q4_0 -sys be", "kjit run hf:a/b:Q4_0 --system be"),
            ("kjit serve -m x.gguf --model y", "kjit serve x.gguf --model y"),
            // The value of a flag and the arguments after `--` are not flags.
            ("kjit run x.gguf -p -m", "kjit run x.gguf -p -m"),
            ("kjit run x.gguf -- -ngl", "kjit run x.gguf -- -ngl"),
            ("kjit run x.gguf --system -fa", "kjit run x.gguf --system -fa"),
        ] {
            assert_eq!(words(theirs), (ours.to_owned(), None));
        }
    }

    #[test]
    fn unneeded_flags_are_ignored_with_one_note() {
        let (line, note) = words("kjit run x.gguf -ngl 99 -fa on --no-mmap -cnv -p hi");
        assert_eq!(line, "kjit run x.gguf -p hi");
        assert_eq!(note.unwrap().matches("note: -ngl, -fa, --no-mmap, -cnv ignored").count(), 1);
        assert_eq!(words("kjit run x.gguf -fa -p hi --n-gpu-layers=3").0, "kjit run x.gguf -p hi");
    }
}
