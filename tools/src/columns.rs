//! Tables for people, fitted to the width of the terminal. If stdout is not a terminal, nothing is
//! cut.

use console::{Term, measure_text_width, truncate_str};
use std::io::{self, IsTerminal, Write};

/// Mark at the end of a text that was cut.
const CUT: &str = "…";
/// Spaces between two columns.
const GAP: usize = 2;
/// Minimum width of a column.
const MIN_WIDTH: usize = 8;

/// Columns of the terminal on stdout; `None` if stdout is not a terminal.
pub fn width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let (_, columns) = Term::stdout().size_checked()?;
    Some(usize::from(columns)).filter(|columns| *columns > 0)
}

/// Whether text on stdout may have styles: stdout is a terminal that supports them, and `NO_COLOR`
/// is not set.
pub fn styled() -> bool {
    io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
        && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Cuts a line to the width.
pub fn clipped(line: &str, width: Option<usize>) -> String {
    width.map_or_else(|| line.to_owned(), |width| truncate_str(line, width, CUT).into_owned())
}

/// Writes a text and cuts each line to the width.
pub fn write_clipped(text: &str, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    text.lines().try_for_each(|line| writeln!(out, "{}", clipped(line, width)))
}

/// Kind of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Text, never cut.
    Left,
    /// A number.
    Right,
    /// Text that is cut if the table is too wide.
    Flexible,
}

/// Writes rows, each with as many cells as there are columns.
pub fn write(
    columns: &[Column],
    rows: &[Vec<String>],
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut widths: Vec<usize> = (0..columns.len())
        .map(|at| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            cells.map(|cell| measure_text_width(cell)).max().unwrap_or(0)
        })
        .collect();
    let all = widths.iter().sum::<usize>() + GAP * columns.len().saturating_sub(1);
    let mut over = all.saturating_sub(width.unwrap_or(usize::MAX));
    // The widest flexible column becomes narrower, one character at a time.
    while over > 0 {
        let flexible = widths.iter_mut().zip(columns).filter(|(_, c)| **c == Column::Flexible);
        let Some((widest, _)) = flexible.max_by_key(|(width, _)| **width) else { break };
        if *widest <= MIN_WIDTH {
            break;
        }
        (*widest, over) = (*widest - 1, over - 1);
    }
    for row in rows {
        let mut line = String::new();
        for ((cell, column), width) in row.iter().zip(columns).zip(&widths) {
            if !line.is_empty() {
                line.push_str(&" ".repeat(GAP));
            }
            let cell = truncate_str(cell, *width, CUT);
            let space = " ".repeat(width.saturating_sub(measure_text_width(&cell)));
            match column {
                Column::Right => line.extend([space.as_str(), &cell]),
                Column::Left | Column::Flexible => line.extend([&cell, space.as_str()]),
            }
        }
        // If no column can become narrower, the end of the line is cut.
        writeln!(out, "{}", clipped(line.trim_end(), width))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Column, clipped, write};
    use console::measure_text_width;

    fn table(width: Option<usize>) -> Vec<String> {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["a name that is long", "1", "cpu"]), row(["短い名前", "1234", "cuda:0"])];
        let mut out = vec![];
        write(&[Column::Flexible, Column::Right, Column::Left], &rows, width, &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn columns_are_aligned_and_uncut_without_a_width() {
        let lines = table(None);
        assert_eq!(lines, ["a name that is long     1  cpu", "短い名前             1234  cuda:0"]);
        assert_eq!(table(Some(80)), lines);
    }

    #[test]
    fn lines_fit_any_width_and_mark_cuts() {
        for width in 1..40 {
            for line in table(Some(width)) {
                assert!(measure_text_width(&line) <= width, "{width}: {line}");
            }
        }
        assert_eq!(table(Some(24))[0], "a name th…     1  cpu");
        assert_eq!(clipped("whole", Some(5)), "whole");
        assert_eq!(clipped("cut off", Some(5)), "cut …");
        assert_eq!(clipped("cut off", None), "cut off");
    }
}
