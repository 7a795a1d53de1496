//! `kjit run` without a prompt on a terminal: a chat with history.

mod editor;
mod pictures;
mod printer;

use super::statistics::statistics;
use crate::args::{self, Shared};
use crate::columns;
use crate::grammar::AnswerGrammar;
use crate::interrupt::Interrupt;
use crate::report::say;
use anyhow::Context;
use editor::Input;
use editor::QUOTES;
use kjit_model::Model;
use kjit_model::chat::{ChatTemplate, Message};
use kjit_model::constrain::Grammar;
use kjit_model::conversation::{CachedTokens, forget_oldest};
use kjit_model::generate::{Answer, Request, StopReason, generate, generate_constrained};
use kjit_model::images::{ImagePrompt, Images};
use kjit_model::session::{SequenceId, SessionError};
use pictures::Pictures;
use printer::Printer;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
/clear     forget the conversation
/image F   put an image file before the next text
/continue  go on with an answer that was cut
/stats     show the figures of the last answer
/help, /?  show this list
/bye       leave; so does Ctrl-D
//TEXT     send a text that begins with a slash
\"\"\"        begin and end a text of several lines; Alt-Enter begins a new line, too
Ctrl-C     stop an answer";

/// A line that the user typed.
#[derive(Debug, PartialEq, Eq)]
enum Typed<'a> {
    Nothing,
    Command(&'a str),
    Text(&'a str),
}

fn typed(line: &str) -> Typed<'_> {
    let text = line.trim();
    let quoted = text.strip_prefix(QUOTES).and_then(|rest| rest.strip_suffix(QUOTES));
    if let Some(text) = quoted {
        let text = text.strip_prefix('\n').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        return if text.trim().is_empty() { Typed::Nothing } else { Typed::Text(text) };
    }
    match text.strip_prefix('/') {
        Some(rest) if rest.starts_with('/') => Typed::Text(rest),
        Some(_) => Typed::Command(text),
        None if text.is_empty() => Typed::Nothing,
        None => Typed::Text(line),
    }
}

pub fn chat(
    args: &args::Run,
    shared: &Shared,
    (model, images): (Model, Option<Images>),
    sequence: SequenceId,
    grammar: Option<AnswerGrammar>,
) -> anyhow::Result<ExitCode> {
    if args.raw {
        anyhow::bail!("--raw needs a prompt: a chat goes through the model's template");
    }
    let template = crate::template::open(args.template.as_deref(), &model.gguf, &model.tokenizer)?;
    let opening: Vec<Message> = args.system.iter().map(|s| Message::new("system", s)).collect();
    let mut chat = Chat {
        args,
        shared,
        model,
        sequence,
        template,
        grammar,
        constraint: None,
        history: opening.clone(),
        opening,
        seen: CachedTokens::default(),
        last: None,
        cut: None,
        interrupt: Interrupt::watch(),
        pictures: Pictures::new(images),
    };
    for path in &args.image {
        chat.pictures.add(path).context("--image")?;
    }
    let mut input = Input::new(shared.quiet)?;
    if !shared.quiet {
        say("/help lists commands, /bye or Ctrl-D leaves, Ctrl-C stops an answer");
    }
    while let Some(line) = input.next()? {
        match typed(&line) {
            Typed::Nothing => {}
            Typed::Command("/bye") => break,
            Typed::Command(command) => chat.command(command)?,
            Typed::Text(text) => {
                input.remember(&line);
                chat.send(text)?;
            }
        }
    }
    chat.model.finish()?;
    Ok(ExitCode::SUCCESS)
}

struct Chat<'a> {
    args: &'a args::Run,
    shared: &'a Shared,
    model: Model,
    sequence: SequenceId,
    template: ChatTemplate,
    /// The grammar of all answers.
    grammar: Option<AnswerGrammar>,
    /// The constraint of the last answer. It has accepted the answer's tokens.
    constraint: Option<Box<Grammar>>,
    /// Messages at the start of every conversation.
    opening: Vec<Message>,
    history: Vec<Message>,
    seen: CachedTokens,
    /// The last answer, and the number of tokens in the context for it.
    last: Option<(Answer, usize)>,
    /// Tokens of prompt and answer, if the last answer was cut.
    cut: Option<Vec<u32>>,
    interrupt: Interrupt,
    pictures: Pictures,
}

impl Chat<'_> {
    fn command(&mut self, command: &str) -> anyhow::Result<()> {
        match command {
            "/clear" => {
                self.history.clone_from(&self.opening);
                self.cut = None;
                self.pictures.clear();
            }
            "/stats" => match &self.last {
                Some((answer, prompt)) => statistics(answer, *prompt, &self.model),
                None => say("nothing was generated yet"),
            },
            "/continue" => match self.cut.take() {
                Some(tokens) if tokens.len() >= self.model.session.context() => {
                    say(format_args!("the context of {} tokens is full", tokens.len()));
                }
                Some(tokens) => {
                    let more = self.answer(&tokens)?;
                    if let Some(last) = self.history.last_mut() {
                        last.content.push_str(&more);
                    }
                }
                None => say("the last answer was not cut"),
            },
            "/help" | "/?" => say(HELP),
            _ if command.split_whitespace().next() == Some("/image") => {
                let path = command.trim_start_matches("/image").trim();
                let path = path.trim_matches(['"', '\'']);
                match self.pictures.add(Path::new(path)) {
                    _ if path.is_empty() => say("give a file: /image photo.jpg"),
                    Ok(rows) if !self.shared.quiet => {
                        say(format_args!("{path}: {rows} rows before the next text"))
                    }
                    Ok(_) => {}
                    Err(error) => say(format_args!("{error:#}")),
                }
            }
            _ => say(format_args!(
                "no command '{command}': /help lists them, and // begins a text with a slash"
            )),
        }
        Ok(())
    }

    fn encode(&self, history: &[Message]) -> anyhow::Result<ImagePrompt> {
        let rendered = self.template.render(history, true)?;
        self.pictures.encode(&self.model.tokenizer, &rendered)
    }

    /// Sends a message and prints the answer.
    fn send(&mut self, text: &str) -> anyhow::Result<()> {
        let mut history = std::mem::take(&mut self.history);
        history.push(Message::new("user", format!("{}{text}", self.pictures.take())));
        let context = self.model.session.context();
        // An answer needs free context: a quarter of it, or the value of -n if that is less.
        let room = (context / 4).min(self.args.tokens.unwrap_or(usize::MAX)).max(1);
        let full = context - room;
        let length = |history: &[Message]| self.encode(history).map(|prompt| prompt.ids.len());
        let gone = forget_oldest(&mut history, self.opening.len(), full, full / 2, length)?;
        if gone > 0 && !self.shared.quiet {
            say(format_args!(
                "note: the conversation fills the context of {context} tokens: \
                 its {gone} oldest messages are forgotten"
            ));
        }
        let prompt = self.encode(&history)?;
        let ids = self.pictures.keep(prompt);
        self.history = history;
        if ids.len() >= context {
            say(SessionError::Context { tokens: ids.len(), context });
            self.history.pop();
            return Ok(());
        }
        if let Some(grammar) = &mut self.grammar {
            let prompt = self.template.render(&self.history, true)?;
            let form = self.template.form();
            self.constraint = Some(grammar.constraint(&self.model, Some((form, &prompt)))?);
        }
        let answer = self.answer(&ids)?;
        self.history.push(Message::new("assistant", answer));
        Ok(())
    }

    /// Generates an answer after these tokens and prints its text.
    fn answer(&mut self, ids: &[u32]) -> anyhow::Result<String> {
        let rest = self.seen.rest(&mut self.model.session, self.sequence, ids)?;
        self.interrupt.forget();
        let mut printer = Printer::new(io::stdout().lock(), columns::width(), columns::styled());
        let interrupt = &self.interrupt;
        let (session, tokenizer) = (&mut self.model.session, &self.model.tokenizer);
        let request = Request {
            prompt: rest,
            max_tokens: self.args.tokens,
            stop: &self.args.stop,
            lookup: self.args.lookup.is_on(),
            ..Request::default()
        };
        let mut show = |text: &str| match printer.push(text) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        let (sequence, stop) = (self.sequence, || interrupt.came());
        let answer = match self.constraint.as_deref_mut() {
            None => generate(session, sequence, tokenizer, &request, &mut show, &stop)?,
            Some(constraint) => generate_constrained(
                session, sequence, tokenizer, &request, constraint, &mut show, &stop,
            )?,
        };
        printer.finish()?;
        drop(printer);
        self.seen.generated(&self.model.session, self.sequence, &answer.ids)?;
        let why = match answer.reason {
            StopReason::Length => {
                let tokens = answer.ids.len();
                Some(format!("after {tokens} tokens (-n): /continue continues it"))
            }
            StopReason::ContextFull => {
                let context = self.model.session.context();
                Some(format!("the context of {context} tokens is full (-c)"))
            }
            StopReason::Interrupted | StopReason::EndOfGeneration | StopReason::StopText => None,
        };
        if let Some(why) = why.filter(|_| !self.shared.quiet) {
            say(format_args!("note: the answer was cut: {why}"));
        }
        let whole = matches!(answer.reason, StopReason::EndOfGeneration | StopReason::StopText);
        self.cut = (!whole).then(|| [ids, &answer.ids].concat());
        let text = answer.text.clone();
        self.last = Some((answer, rest.len()));
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::Typed::{Command, Nothing, Text};
    use super::typed;

    #[test]
    fn chat_input_is_command_text_or_empty() {
        for (line, wanted) in [
            ("", Nothing),
            ("  ", Nothing),
            ("hello ", Text("hello ")),
            ("/bye", Command("/bye")),
            (" /stats ", Command("/stats")),
            ("//etc is a folder", Text("/etc is a folder")),
            ("///", Text("//")),
            ("\"\"\"one\ntwo\"\"\"", Text("one\ntwo")),
            ("\"\"\"\n/etc\n\n\"\"\"", Text("/etc\n")),
            ("\"\"\"\"\"\"", Nothing),
            ("\"\"\" \n\"\"\"", Nothing),
            ("\"\"\"\"", Text("\"\"\"\"")),
        ] {
            assert_eq!(typed(line), wanted, "{line:?}");
        }
    }
}
