//! Pixels and rows against transformers (`scripts/vision-goldens`).

use kjit_vision::{Piece, VisionEncoder};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Largest distance of an element, relative to the largest element of all rows. Both sides compute
/// in f32 and add in other orders: a few hundred terms per sum and two or three blocks give about
/// 1e-6. An error of a formula gives more than 1e-3: GELU by tanh in place of the error function,
/// the smallest of them, 4e-4.
const TOLERANCE: f64 = 2e-5;

pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/vision").join(name)
}

fn goldens(family: &str) -> Value {
    let all = std::fs::read_to_string(data("goldens.json")).unwrap();
    serde_json::from_str::<Value>(&all).unwrap()[family].take()
}

fn floats(base64: &str) -> Vec<f32> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut held, mut bytes) = (0u32, 0, vec![]);
    for letter in base64.bytes().filter(|b| *b != b'=') {
        let value = LETTERS.iter().position(|l| *l == letter).unwrap() as u32;
        (bits, held) = (bits << 6 | value, held + 6);
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn pixels_are_those_of_transformers(family: &str) {
    let encoder = VisionEncoder::open(data(&format!("{family}.gguf")), 2).unwrap();
    let wanted = goldens(family);
    let pictures = wanted["pictures"].as_array().unwrap();
    assert_eq!(pictures.len(), 6);
    for one in pictures {
        let name = one["picture"].as_str().unwrap();
        let made = encoder.prepare(&std::fs::read(data(name)).unwrap()).unwrap();
        assert_eq!(made.tiles().len() as u64, one["tiles"].as_u64().unwrap(), "{family} {name}");
        let mut digest = Sha256::new();
        made.tiles().iter().for_each(|tile| digest.update(&tile.rgb));
        let digest: String = digest.finalize().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(digest, one["sha256"].as_str().unwrap(), "{family} {name}");
        // The prompt has as many rows as the encoder makes.
        let rows = made.layout().iter().map(|p| if let Piece::Rows(n) = p { *n } else { 0 });
        let rows: usize = rows.sum();
        assert_eq!(encoder.encode(&made).unwrap().len(), rows * encoder.width());
    }
}

fn rows_are_those_of_transformers(family: &str) {
    let wanted = goldens(family);
    let rows = floats(wanted["rows"].as_str().unwrap());
    let picture = std::fs::read(data(wanted["rows_of"].as_str().unwrap())).unwrap();
    for threads in [1, 3] {
        let encoder = VisionEncoder::open(data(&format!("{family}.gguf")), threads).unwrap();
        let made = encoder.encode(&encoder.prepare(&picture).unwrap()).unwrap();
        assert_eq!((made.len(), encoder.width()), (rows.len(), 24));
        let most = rows.iter().fold(0.0, |most: f64, x| most.max(f64::from(*x).abs()));
        assert!(most > 0.1 && most.is_finite());
        let mut far = 0.0f64;
        for (made, row) in made.iter().zip(&rows) {
            assert!(made.is_finite());
            far = far.max((f64::from(*made) - f64::from(*row)).abs() / most);
        }
        assert!(far <= TOLERANCE, "{family}: {far:e} of {most}");
    }
}

#[test]
fn llava_pixels_are_those_of_transformers() {
    pixels_are_those_of_transformers("llava");
}

#[test]
fn smolvlm_pixels_are_those_of_transformers() {
    pixels_are_those_of_transformers("smolvlm");
}

#[test]
fn llava_rows_are_those_of_transformers() {
    rows_are_those_of_transformers("llava");
}

#[test]
fn smolvlm_rows_are_those_of_transformers() {
    rows_are_those_of_transformers("smolvlm");
}

#[test]
fn gemma3_pixels_are_those_of_transformers() {
    pixels_are_those_of_transformers("gemma3");
}

#[test]
fn gemma3_rows_are_those_of_transformers() {
    rows_are_those_of_transformers("gemma3");
}

#[test]
fn internvl_pixels_are_those_of_transformers() {
    pixels_are_those_of_transformers("internvl");
}

#[test]
fn internvl_rows_are_those_of_transformers() {
    rows_are_those_of_transformers("internvl");
}

#[test]
fn pixtral_pixels_are_those_of_transformers() {
    pixels_are_those_of_transformers("pixtral");
    pixels_are_those_of_transformers("mistral3");
}

#[test]
fn pixtral_rows_are_those_of_transformers() {
    rows_are_those_of_transformers("pixtral");
}

#[test]
fn mistral3_rows_are_those_of_transformers() {
    rows_are_those_of_transformers("mistral3");
}

#[test]
fn lines_of_pixtral_end_with_marks() {
    let layout = |family: &str, name: &str| {
        let encoder = VisionEncoder::open(data(family), 1).unwrap();
        encoder.prepare(&std::fs::read(data(name)).unwrap()).unwrap().layout().to_vec()
    };
    let text = |text: &str| Piece::Text(text.to_owned());
    // 20 × 9 becomes 20 × 12 with patches of 4, and 24 × 16 with squares of 8.
    let mut wanted = vec![];
    for mark in ["[IMG_BREAK]", "[IMG_BREAK]", "[IMG_END]"] {
        wanted.extend([Piece::Rows(5), text(mark)]);
    }
    assert_eq!(layout("pixtral.gguf", "20x9.png"), wanted);
    let wanted = [Piece::Rows(3), text("[IMG_BREAK]"), Piece::Rows(3), text("[IMG_END]")];
    assert_eq!(layout("mistral3.gguf", "20x9.png"), wanted);
    // Four tiles in a line and the whole picture, 9 rows each.
    let wanted = [text("<img>"), Piece::Rows(45), text("</img>")];
    assert_eq!(layout("internvl.gguf", "110x26.png"), wanted);
}

#[test]
fn gemma3_picture_stands_between_its_marks() {
    let encoder = VisionEncoder::open(data("gemma3.gguf"), 1).unwrap();
    assert!(encoder.is_bidirectional());
    let picture = encoder.prepare(&std::fs::read(data("9x90.png")).unwrap()).unwrap();
    let text = |text: &str| Piece::Text(text.to_owned());
    let wanted = [text("\n\n<start_of_image>"), Piece::Rows(9), text("<end_of_image>\n\n")];
    assert_eq!(picture.layout(), wanted);
}

#[test]
fn smolvlm_tiles_stand_in_their_markers() {
    let encoder = VisionEncoder::open(data("smolvlm.gguf"), 1).unwrap();
    let prepare = |name: &str| encoder.prepare(&std::fs::read(data(name)).unwrap()).unwrap();
    let text = |layout: &[Piece]| -> String {
        let one = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Rows(rows) => format!("[{rows}]"),
        };
        layout.iter().map(one).collect()
    };
    let around = "<fake_token_around_image>";
    // 61 × 37 becomes 60 × 36, then 72 × 48: three columns and two lines of 24.
    let tiles = |line: usize| -> String {
        (1..=3).map(|column| format!("{around}<row_{line}_col_{column}>[4]")).collect()
    };
    let whole = format!("{around}<global-img>[4]{around}");
    assert_eq!(
        text(prepare("61x37.png").layout()),
        format!("{}\n{}\n\n{whole}", tiles(1), tiles(2))
    );
}
