//! `kjit run` without a prompt on a terminal: a chat with history.

use super::run::statistics;
use crate::args::{self, Shared};
use crate::interrupt::Interrupt;
use crate::report::say;
use kjit_model::Model;
use kjit_model::chat::Message;
use kjit_model::conversation::{Seen, forget_oldest};
use kjit_model::generate::{Answer, Request, generate};
use kjit_model::session::{SequenceId, SessionError};
use rustyline::error::ReadlineError;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

pub fn chat(
    args: &args::Run,
    shared: &Shared,
    mut model: Model,
    sequence: SequenceId,
) -> anyhow::Result<ExitCode> {
    if args.raw {
        anyhow::bail!("--raw needs a prompt: a chat goes through the model's template");
    }
    let template = crate::template::open(args.template.as_deref(), &model.gguf, &model.tokenizer)?;
    let opening: Vec<Message> = args.system.iter().map(|s| Message::new("system", s)).collect();
    let mut history = opening.clone();
    let mut seen = Seen::default();
    let interrupt = Interrupt::watch();
    let mut last: Option<(Answer, usize)> = None;
    let mut editor = rustyline::DefaultEditor::new()?;
    if !shared.quiet {
        say(
            "/clear forgets the conversation, /stats shows figures, /bye or Ctrl-D leaves; Ctrl-C \
             stops an answer",
        );
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
                    Some((answer, prompt)) => statistics(answer, *prompt, &model),
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
        let context = model.session.context();
        let encode = |history: &[Message]| -> anyhow::Result<Vec<u32>> {
            Ok(model.tokenizer.encode_chat(&template.render(history, true)?))
        };
        // An answer needs room: a quarter of the context, or as much as -n lets it have.
        let full = context - (context / 4).min(args.tokens.unwrap_or(usize::MAX)).max(1);
        let length = |history: &[Message]| encode(history).map(|ids| ids.len());
        let gone = forget_oldest(&mut history, opening.len(), full, full / 2, length)?;
        if gone > 0 && !shared.quiet {
            say(format_args!(
                "note: the conversation fills the context of {context} tokens: its {gone} oldest \
                 messages are forgotten"
            ));
        }
        let ids = encode(&history)?;
        if ids.len() >= context {
            say(SessionError::Context { tokens: ids.len(), context });
            history.pop();
            continue;
        }
        let rest = seen.rest(&mut model.session, sequence, &ids)?;
        interrupt.forget();
        let mut out = io::stdout().lock();
        let answer = generate(
            &mut model.session,
            sequence,
            &model.tokenizer,
            &Request {
                prompt: rest,
                max_tokens: args.tokens,
                stop: &args.stop,
                lookup: args.lookup.is_on(),
            },
            &mut |text| match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            },
            &|| interrupt.came(),
        )?;
        writeln!(out)?;
        drop(out);
        seen.generated(&model.session, sequence, &answer.ids)?;
        history.push(Message::new("assistant", &answer.text));
        last = Some((answer, rest.len()));
    }
    model.finish()?;
    Ok(ExitCode::SUCCESS)
}
