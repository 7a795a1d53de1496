//! Advice for users of llama.cpp and ollama: for a flag or command of these programs, one line
//! names kjit's equivalent. Without it clap would suggest a similar spelling.

use crate::args::Cli;
use clap::CommandFactory;
use std::ffi::OsString;
use std::path::Path;

/// Flags of llama.cpp, and what to use in kjit.
const FLAGS: &[(&[&str], &str)] = &[
    (
        &["-i", "--interactive", "--interactive-first"],
        "remove it: `kjit run MODEL` without a prompt is a chat",
    ),
    (
        &["-no-cnv", "--no-conversation"],
        "remove it and give a prompt; --raw feeds it without the chat template",
    ),
    (&["-st", "--single-turn"], "remove it: with a prompt there is one answer"),
    (
        &["-hfr", "-hff", "--hf-file", "-mu", "--model-url"],
        "give the model without a flag: kjit run hf:ORG/REPO:QUANT …",
    ),
    (&["-tb", "--threads-batch"], "give --threads N"),
    (
        &["-ub", "--ubatch-size", "--batch-size"],
        "give --prefill-chunk N (in bench, -b N is the number of concurrent sequences)",
    ),
    (
        &["-b", "--batch"],
        "give --prefill-chunk N (in bench, -b N is the number of concurrent sequences)",
    ),
    (
        &["-ctk", "-ctv", "--cache-type-k", "--cache-type-v"],
        "give --kv-type f16 or q8_0: keys and values have the same type",
    ),
    (&["-kvu"], "remove it: kjit decides this itself"),
    (&["-dev", "-mg", "--main-gpu"], "give --device cuda:N or rocm:N (`kjit devices` lists them)"),
    (
        &["-ts", "--tensor-split", "-sm", "--split-mode"],
        "give the devices (--device cuda:0,cuda:1) and --split layers or --split tensor; \
         shares go by memory",
    ),
    (&["--verbose-prompt"], "`kjit template` shows the prompt that a chat template makes"),
];

/// Commands of llama.cpp and ollama, and what to use in kjit.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["chat", "cli", "llama-cli", "generate", "complete", "ask"],
        "`kjit run MODEL` chats, `kjit run MODEL 'a prompt'` answers",
    ),
    (
        &["ls"],
        "`kjit list` lists the downloaded models, \
         `kjit ps` the running servers (`kjit cache list`: compiled kernels)",
    ),
    (&["show", "info"], "`kjit inspect MODEL` shows a model file"),
    (&["download", "get", "fetch"], "`kjit pull hf:ORG/REPO:QUANT` fetches a model"),
    (
        &["remove", "delete"],
        "`kjit rm hf:ORG/REPO:QUANT` removes a model (`kjit cache clear`: compiled kernels)",
    ),
    (&["server", "llama-server"], "`kjit serve MODEL` answers over HTTP"),
    (&["llama-bench", "benchmark"], "`kjit bench MODEL` measures speed"),
    (&["ppl", "llama-perplexity"], "`kjit perplexity MODEL -f FILE`"),
    (&["test", "check"], "`kjit doctor` checks this machine, `kjit doctor --run` its kernels"),
];

/// Advice, if one of these refused arguments is a flag or command of another program.
pub fn advice(arguments: &[OsString]) -> Option<String> {
    let arguments: Vec<String> =
        arguments.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    // In `kjit cache`, --model is a filter.
    if arguments.iter().find(|a| !a.starts_with('-')).is_some_and(|a| a == "cache") {
        return None;
    }
    // If the command has this flag, its value was refused, and clap's error explains that.
    let cli = Cli::command();
    let command =
        arguments.iter().find(|a| !a.starts_with('-')).and_then(|name| cli.find_subcommand(name));
    let has = |word: &str| {
        command.is_some_and(|command| command.get_arguments().any(|own| is(own, word)))
    };
    let own = [
        "run",
        "warm",
        "bench",
        "inspect",
        "logits",
        "perplexity",
        "tokenize",
        "detokenize",
        "template",
    ];
    // In llama.cpp `-m FILE` names the model. The rest of the line may be right.
    let named = |a: &String| a == "-m" || a == "--model" || a.starts_with("--model=");
    if let Some(at) = arguments.iter().position(named).filter(|_| !has("--model")) {
        let command =
            arguments.iter().find(|a| own.contains(&a.as_str())).map_or("run", String::as_str);
        let flag = arguments.get(at).map_or("-m", |a| a.split('=').next().unwrap_or(a));
        let after = arguments.get(at).and_then(|a| a.split_once('=')).map(|(_, file)| file);
        let model = after.or_else(|| arguments.get(at + 1).map(String::as_str)).unwrap_or("MODEL");
        return Some(format!("'{flag}': give the model without a flag: kjit {command} {model} …"));
    }
    for argument in &arguments {
        let word = argument.split('=').next().unwrap_or(argument);
        if let Some((_, say)) = FLAGS.iter().find(|(words, _)| words.contains(&word) && !has(word))
        {
            return Some(format!("'{word}': {say}"));
        }
    }
    let command = arguments.iter().find(|a| !a.starts_with('-'))?;
    if let Some((_, say)) = COMMANDS.iter().find(|(words, _)| words.contains(&command.as_str())) {
        return Some(format!("'{command}': {say}"));
    }
    let model = Path::new(command).extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    model.then(|| format!("'{command}': name a command first: kjit run {command} …"))
}

/// Whether `word` names this flag.
fn is(flag: &clap::Arg, word: &str) -> bool {
    let long = word.strip_prefix("--").is_some_and(|long| flag.get_long() == Some(long));
    let mut short = word.strip_prefix('-').unwrap_or_default().chars();
    long || (flag.get_short().is_some()
        && short.next() == flag.get_short()
        && short.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::{COMMANDS, FLAGS, advice};
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn valid_flag_gets_no_advice() {
        let said = |line: &str| advice(&line.split(' ').map(Into::into).collect::<Vec<_>>());
        assert_eq!(said("bench m.gguf -b 128"), None);
        assert_eq!(said("serve --model m.gguf --max-queue x"), None);
        assert!(said("run m.gguf -b 128").unwrap().contains("--prefill-chunk"));
        assert!(said("run -m m.gguf").unwrap().contains("without a flag"));
    }

    #[test]
    fn advice_tables_contain_no_valid_command_or_flag() {
        let cli = Cli::command();
        for (words, say) in COMMANDS {
            for word in *words {
                assert!(cli.find_subcommand(word).is_none(), "{word}: {say}");
            }
        }
        let ours: Vec<String> = cli
            .get_subcommands()
            .filter(|c| c.get_name() == "run")
            .flat_map(|c| c.get_arguments())
            .flat_map(|a| {
                a.get_long()
                    .map(|l| format!("--{l}"))
                    .into_iter()
                    .chain(a.get_short().map(|s| format!("-{s}")))
            })
            .collect();
        assert!(ours.contains(&"--prefill-chunk".to_string()), "{ours:?}");
        for (words, say) in FLAGS {
            for word in *words {
                assert!(!ours.contains(&(*word).to_string()), "{word}: {say}");
            }
        }
    }
}
