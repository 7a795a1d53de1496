//! The prompt text and rows of a picture.

/// A piece of a prompt in place of a picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text with control tokens.
    Text(String),
    /// The next rows of the encoder, this many.
    Rows(usize),
}

const AROUND: &str = "<fake_token_around_image>";

/// Idefics 3 and SmolVLM: the tiles line by line, then the whole picture. Without tiles
/// (`lines` 0) the whole picture alone.
pub(crate) fn idefics3(lines: usize, columns: usize, rows: usize) -> Vec<Piece> {
    let mut pieces = vec![];
    let mut text = String::new();
    for line in 1..=lines {
        for column in 1..=columns {
            text += &format!("{AROUND}<row_{line}_col_{column}>");
            pieces.push(Piece::Text(std::mem::take(&mut text)));
            pieces.push(Piece::Rows(rows));
        }
        text.push('\n');
    }
    if lines > 0 {
        text.push('\n');
    }
    text += &format!("{AROUND}<global-img>");
    pieces.extend([Piece::Text(text), Piece::Rows(rows), Piece::Text(AROUND.to_owned())]);
    pieces
}

/// Gemma 3: one picture between its marks, with the empty lines of transformers.
pub(crate) fn gemma3(rows: usize) -> Vec<Piece> {
    let text = |text: &str| Piece::Text(text.to_owned());
    vec![text("\n\n<start_of_image>"), Piece::Rows(rows), text("<end_of_image>\n\n")]
}

/// InternVL: the rows of all tiles between two marks.
pub(crate) fn internvl(rows: usize) -> Vec<Piece> {
    let text = |text: &str| Piece::Text(text.to_owned());
    vec![text("<img>"), Piece::Rows(rows), text("</img>")]
}

/// Pixtral: a mark after each line of rows.
pub(crate) fn pixtral(columns: usize, lines: usize) -> Vec<Piece> {
    let mut pieces = vec![];
    for line in 1..=lines {
        let mark = if line == lines { "[IMG_END]" } else { "[IMG_BREAK]" };
        pieces.extend([Piece::Rows(columns), Piece::Text(mark.to_owned())]);
    }
    pieces
}
