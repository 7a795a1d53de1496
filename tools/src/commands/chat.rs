//! `kjit run` without a prompt on a terminal: a chat with history.

use super::run::{sampler, statistics};
use crate::args::{self, Shared};
use crate::interrupt::Interrupt;
use crate::load::Loaded;
use crate::render::bounded;
use crate::report::say;
use kjit_model::chat::{ChatTemplate, Message};
use kjit_model::conversation::Seen;
use kjit_model::exec::ExecError;
use kjit_model::generate::{Answer, Request, generate};
use rustyline::error::ReadlineError;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

pub fn chat(args: &args::Run, shared: &Shared, mut loaded: Loaded) -> anyhow::Result<ExitCode> {
    if args.raw {
        anyhow::bail!("--raw needs a prompt: a chat goes through the model's template");
    }
    let template = ChatTemplate::from_gguf(&loaded.gguf, &loaded.tokenizer)?;
    let opening: Vec<Message> = args.system.iter().map(|s| Message::new("system", s)).collect();
    let mut history = opening.clone();
    let mut seen = Seen::default();
    let mut sampler = sampler(&args.sampling)?;
    let interrupt = Interrupt::watch();
    let mut last: Option<(Answer, usize)> = None;
    let mut editor = rustyline::DefaultEditor::new()?;
    if !shared.quiet {
        say("/clear forgets the conversation, /stats shows figures, /bye or Ctrl-D leaves; Ctrl-C stops an answer");
    }
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(e) => return Err(e.into()),
        };
        match line.trim() {
            "" => continue,
            "/bye" => break,
            "/clear" => {
                history.clone_from(&opening);
                continue;
            }
            "/stats" => {
                match &last {
                    Some((answer, prompt)) => statistics(answer, *prompt, &loaded),
                    None => say("nothing was generated yet"),
                }
                continue;
            }
            command if command.starts_with('/') => {
                say(format_args!("no command '{command}': there are /clear, /stats and /bye"));
                continue;
            }
            _ => {}
        }
        let _ = editor.add_history_entry(&line);
        history.push(Message::new("user", &line));
        let ids = loaded.tokenizer.encode_chat(&bounded(|| template.render(&history, true))?);
        if ids.len() >= loaded.exec.context() {
            say(ExecError::Context { tokens: ids.len(), context: loaded.exec.context() });
            say("the conversation is full: /clear starts a new one");
            history.pop();
            continue;
        }
        let rest = seen.rest(loaded.exec.as_mut(), &ids);
        interrupt.forget();
        let mut out = io::stdout().lock();
        let answer = generate(
            loaded.exec.as_mut(),
            &loaded.tokenizer,
            &mut sampler,
            &Request { prompt: rest, max_tokens: args.tokens, stop: &args.stop },
            &mut |text| match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            },
            &|| interrupt.came(),
        )?;
        writeln!(out)?;
        drop(out);
        seen.generated(loaded.exec.as_ref(), &answer.ids);
        history.push(Message::new("assistant", &answer.text));
        last = Some((answer, rest.len()));
    }
    loaded.finish()?;
    Ok(ExitCode::SUCCESS)
}
