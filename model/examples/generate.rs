//! `generate MODEL [PROMPT [DEVICE]]`: an answer from a model, in the lines that the crate's README
//! shows. Works without a GPU.

use kjit_model::{Message, Model, OpenOptions, SampleOptions};
use std::io::Write;
use std::ops::ControlFlow;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    kjit_model::child_main(); // compilers run in a child process: this program, started again
    let args: Vec<String> = std::env::args().collect();
    let arg = |i: usize, or: &'static str| args.get(i).map_or(or, String::as_str);
    let options = OpenOptions { device: arg(3, "auto").parse()?, ..OpenOptions::default() };
    let mut model = Model::open(arg(1, "model.gguf"), &options)?;
    eprintln!("device: {}", model.device());
    let prompt = model.chat_prompt(&[Message::new("user", arg(2, "Name a colour."))])?;
    let sequence =
        model.add(SampleOptions { temperature: 0.8, seed: 7, ..SampleOptions::default() })?;
    let answer = model.generate(sequence, &prompt, Some(64), &mut |text| {
        let mut out = std::io::stdout();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    eprintln!("\n{} tokens, {}", answer.ids.len(), answer.reason.as_str());
    Ok(())
}
