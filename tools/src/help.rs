//! Prints help. Descriptions are broken at words and indented. clap can do this only with another
//! crate.

use crate::columns::{self, styled};
use console::{measure_text_width, strip_ansi_codes};
use std::io::{self, Write};

/// Maximum width in columns. It is also the width if stdout is not a terminal.
const WIDTH: usize = 100;
/// Minimum columns of a description.
const MIN_WIDTH: usize = 24;

/// Prints the help of a command, as clap formatted it.
pub fn print(help: &clap::builder::StyledStr) -> io::Result<()> {
    let text = if styled() { help.ansi().to_string() } else { help.to_string() };
    let width = columns::width().map_or(WIDTH, |width| width.min(WIDTH));
    io::stdout().lock().write_all(wrapped(&text, width).as_bytes())
}

fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::new();
    // Examples are commands to copy, so their lines are not broken.
    let mut examples = false;
    for line in text.lines() {
        examples |= line.starts_with("Example");
        if examples || measure_text_width(line) <= width {
            out.push_str(line);
        } else {
            wrap(line, width, &mut out);
        }
        out.push('\n');
    }
    out
}

/// Breaks a line. The next lines are indented to its description.
fn wrap(line: &str, width: usize, out: &mut String) {
    let mut indent = description(&strip_ansi_codes(line));
    if indent + MIN_WIDTH > width {
        indent = line.len() - line.trim_start().len() + 2;
    }
    // A default value stays in one line.
    let line = line.replace("[default: ", "[default:\u{a0}");
    let mut column = 0;
    for (at, word) in line.split(' ').enumerate() {
        let wide = measure_text_width(word);
        if at > 0 && column > indent && column + 1 + wide > width {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if at > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(&word.replace('\u{a0}', " "));
        column += wide;
    }
}

/// The column at which the description of a line begins: after two spaces.
fn description(line: &str) -> usize {
    let text = line.trim_start();
    let begin = line.len() - text.len();
    let Some((name, rest)) = text.split_once("  ") else { return begin };
    let gap = 2 + rest.len() - rest.trim_start().len();
    begin + measure_text_width(name) + gap
}

#[cfg(test)]
mod tests {
    use super::wrapped;
    use crate::args::Cli;
    use clap::CommandFactory;
    use console::measure_text_width;

    #[test]
    fn help_descriptions_are_aligned() {
        let text =
            "  -n, --tokens <N>  Maximum number of tokens to generate\n      --raw         Short\n";
        let shown = wrapped(text, 50);
        let wanted = [
            "  -n, --tokens <N>  Maximum number of tokens to",
            "                    generate",
            "      --raw         Short",
            "",
        ]
        .join("\n");
        assert_eq!(shown, wanted);
        assert_eq!(wrapped(text, 100), text);
        let example =
            "Example:\n  kjit run a-model-with-a-long-name.gguf 'a long prompt to copy'\n";
        assert_eq!(wrapped(example, 20), example);
    }

    #[test]
    fn help_of_every_command_fits_and_keeps_every_word() {
        let mut cli = Cli::command();
        cli.build();
        for command in cli.get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            for width in [60, 80, 100] {
                let shown = wrapped(&help, width);
                let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
                assert_eq!(words(&shown), words(&help));
                let before = shown.split("\nExample").next().unwrap_or_default();
                for line in before.lines() {
                    assert!(measure_text_width(line) <= width, "{width}: {line}");
                }
            }
        }
    }
}
