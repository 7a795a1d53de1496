//! Tests small vocabularies: invalid vocabularies, defaults, and text that is decoded piece by
//! piece.

use kjit_tokenizer::{
    DecodeOptions, Detokenizer, EncodeOptions, FimIds, SpecialIds, Tokenizer, TokenizerError,
    Vocabulary,
};

/// The letters of byte-level BPE.
fn letters() -> Vec<String> {
    let mut other = 0x100;
    (0u8..=255)
        .map(|b| match b {
            0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from(b).to_string(),
            _ => {
                other += 1;
                char::from_u32(other - 1).unwrap().to_string()
            }
        })
        .collect()
}

struct Bpe {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
}

impl Bpe {
    /// Ids 0–255 are the bytes; then "he", "ll", "hell", "hello", "Ġhello"; then two control tokens
    /// and a user-defined one.
    fn new() -> Bpe {
        let mut tokens = letters();
        tokens.extend(
            ["he", "ll", "hell", "hello", "Ġhello", "<|im_start|>", "<|im_end|>", "<tool>"]
                .map(String::from),
        );
        let mut types = vec![1; 261];
        types.extend([3, 3, 4]);
        let merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"].map(String::from).to_vec();
        Bpe { tokens, types, merges }
    }

    fn vocabulary(&self) -> Vocabulary<'_> {
        Vocabulary {
            model: "gpt2",
            pre: Some("gpt-2"),
            tokens: self.tokens.iter().map(|t| t.as_bytes()).collect(),
            types: Some(self.types.clone()),
            merges: Some(self.merges.iter().map(|m| m.as_bytes()).collect()),
            special: SpecialIds { bos: Some(261), eos: Some(262), ..Default::default() },
            ..Default::default()
        }
    }
}

fn refused(vocabulary: &Vocabulary<'_>) -> String {
    let error = Tokenizer::new(vocabulary).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error:?} is more than one line");
    error
}

#[test]
fn padding_id_outside_vocabulary_is_ignored_with_remark() {
    let bpe = Bpe::new();
    let special =
        SpecialIds { bos: Some(261), eos: Some(262), pad: Some(99_999), ..Default::default() };
    let t = Tokenizer::new(&Vocabulary { special, ..bpe.vocabulary() }).unwrap();
    assert!(t.remarks()[0].contains("padding_token_id 99999 is outside"), "{:?}", t.remarks());
    assert!(Tokenizer::new(&bpe.vocabulary()).unwrap().remarks().is_empty());
}

#[test]
fn merges_apply_by_rank_and_special_tokens_are_split() {
    let bpe = Bpe::new();
    let t = Tokenizer::new(&bpe.vocabulary()).unwrap();
    assert_eq!(t.encode(b"hello hello", EncodeOptions::PLAIN), [259, 260]);
    assert_eq!(t.encode(b"helol", EncodeOptions::PLAIN), [256, 108, 111, 108]);
    assert_eq!(t.encode(b"<tool>he", EncodeOptions::PLAIN), [263, 256]);
    assert_eq!(t.encode(b"<|im_end|>", EncodeOptions::PROMPT), [262]);
    assert_eq!(t.encode(b"<|im_end|>", EncodeOptions::PLAIN).len(), 10);
    assert_eq!((t.eot(), t.eog_ids()), (Some(262), &[262][..]));
    assert_eq!(t.n_vocab(), 264);
}

#[test]
fn bos_is_added_on_request_and_only_once() {
    let bpe = Bpe::new();
    let t = Tokenizer::new(&Vocabulary {
        add_bos: Some(true),
        add_eos: Some(true),
        ..bpe.vocabulary()
    })
    .unwrap();
    assert_eq!(t.encode(b"he", EncodeOptions::PROMPT), [261, 256, 262]);
    assert_eq!(t.encode(b"", EncodeOptions::RAW_PROMPT), [261, 262]);
    assert_eq!(t.encode_chat("he"), [261, 256]);
    assert_eq!(t.encode_chat("<|im_start|>he"), [261, 256]);
    let stripped =
        DecodeOptions { remove_special: true, unparse_special: true, ..DecodeOptions::default() };
    assert_eq!(t.decode_with(&[261, 256, 262], stripped).unwrap(), b"he");
}

#[test]
fn fim_tokens_come_from_file_or_known_texts() {
    let mut bpe = Bpe::new();
    bpe.tokens.extend(["<fim_prefix>", "<fim_suffix>", "<fim_middle>"].map(String::from));
    bpe.types.extend([1, 1, 1]);
    let known = Tokenizer::new(&bpe.vocabulary()).unwrap();
    let all = FimIds { pre: Some(264), suf: Some(265), mid: Some(266) };
    assert_eq!(known.fim(), all);
    assert!(known.is_control(265).unwrap());
    let special_fim = FimIds { pre: Some(3), ..FimIds::default() };
    let named = Tokenizer::new(&Vocabulary { special_fim, ..bpe.vocabulary() }).unwrap();
    assert_eq!(named.fim(), FimIds { pre: Some(3), ..all });
    assert_eq!(Tokenizer::new(&Bpe::new().vocabulary()).unwrap().fim(), FimIds::default());
}

#[test]
fn id_outside_vocabulary_is_an_error() {
    let bpe = Bpe::new();
    let t = Tokenizer::new(&bpe.vocabulary()).unwrap();
    for id in [264, 100_000, u32::MAX] {
        let error = t.decode(&[1, id]).unwrap_err();
        assert!(matches!(error, TokenizerError::IdOutOfRange { id: i, n_vocab: 264 } if i == id));
        assert!(t.token_text(id).is_err() && t.is_control(id).is_err());
        assert!(Detokenizer::new(&t, true).push(id).is_err());
        assert!(!t.is_eog(id));
    }
}

#[test]
fn unsupported_vocabulary_is_named() {
    let bpe = Bpe::new();
    let v = bpe.vocabulary();
    assert!(refused(&Vocabulary { model: "unigram", ..v.clone() }).contains("'unigram'"));
    assert!(refused(&Vocabulary { model: "none", ..v.clone() }).contains("no vocabulary"));
    assert!(refused(&Vocabulary { pre: Some("made-up"), ..v.clone() }).contains("'made-up'"));
    assert!(
        refused(&Vocabulary { merges: None, ..v.clone() })
            .starts_with("tokenizer.ggml.merges: missing")
    );
    assert!(
        refused(&Vocabulary { merges: Some(vec![b"h e", b"hello"]), ..v.clone() })
            .contains("merge 1 (\"hello\")")
    );
    assert!(
        refused(&Vocabulary { types: Some(vec![1; 3]), ..v.clone() })
            .contains("3 elements for 264 tokens")
    );
    assert!(
        refused(&Vocabulary { tokens: vec![], ..v.clone() })
            .starts_with("tokenizer.ggml.tokens: missing")
    );
    assert!(
        refused(&Vocabulary { tokens: vec![b"a", b"b", b"a"], types: None, ..v.clone() })
            .contains("0 and 2")
    );
    let outside = SpecialIds { bos: Some(264), ..Default::default() };
    assert!(
        refused(&Vocabulary { special: outside, ..v.clone() })
            .starts_with("tokenizer.ggml.bos_token_id: 264")
    );
    let llama =
        Vocabulary { model: "llama", tokens: vec![b"a"], types: None, ..Default::default() };
    assert!(refused(&Vocabulary { add_bos: Some(false), ..llama.clone() }).contains("byte 0"));
    assert!(
        refused(&Vocabulary { tokens: vec![b"a"], types: None, ..bert() })
            .contains("unknown_token_id")
    );
}

fn bert() -> Vocabulary<'static> {
    Vocabulary { model: "bert", ..Default::default() }
}

/// A SentencePiece vocabulary: `<unk>`, `<s>`, `</s>`, 256 bytes, then the given pieces.
fn sentence_piece(pieces: &[(&str, f32)], add_space_prefix: Option<bool>) -> Tokenizer {
    let mut texts: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    texts.extend((0..=255u8).map(|b| format!("<0x{b:02X}>")));
    let mut types = vec![2, 3, 3];
    types.extend([6; 256]);
    let mut scores = vec![0.0; 259];
    for (piece, score) in pieces {
        texts.push((*piece).to_owned());
        types.push(1);
        scores.push(*score);
    }
    Tokenizer::new(&Vocabulary {
        model: "llama",
        tokens: texts.iter().map(|t| t.as_bytes()).collect(),
        types: Some(types),
        scores: Some(scores),
        add_space_prefix,
        ..Default::default()
    })
    .unwrap()
}

#[test]
fn sentencepiece_joins_best_pair_and_falls_back_to_bytes() {
    let t = sentence_piece(
        &[("a", -9.0), ("b", -9.0), ("ab", -2.0), ("bb", -1.0), ("abb", -5.0), ("▁", -3.0)],
        None,
    );
    let text = |ids: &[u32]| {
        ids.iter().map(|&id| String::from_utf8_lossy(t.token_text(id).unwrap())).collect::<Vec<_>>()
    };
    let ids = t.encode(b"abb", EncodeOptions::PROMPT);
    assert_eq!(text(&ids).join("|"), "<s>|▁|abb");
    let ids = t.encode("abé".as_bytes(), EncodeOptions::PLAIN);
    assert_eq!(text(&ids).join("|"), "▁|ab|<0xC3>|<0xA9>");
    assert_eq!(
        t.decode(&ids).unwrap(),
        "abé".as_bytes(),
        "the space before the text is removed again"
    );
    let plain = sentence_piece(&[("a", -9.0)], Some(false));
    assert_eq!(plain.encode(b"a", EncodeOptions::PLAIN), [259]);
}

#[test]
fn text_is_not_split_at_spaces_inside_tokens() {
    let t = sentence_piece(
        &[
            ("a", -9.0),
            ("▁", -9.0),
            ("▁a", -3.0),
            ("a▁", -2.0),
            ("a▁a", -1.0),
            ("b", -9.0),
            ("▁b", -3.0),
        ],
        Some(false),
    );
    let text = |input: &[u8]| {
        let ids = t.encode(input, EncodeOptions::PLAIN);
        ids.iter()
            .map(|&id| String::from_utf8_lossy(t.token_text(id).unwrap()).into_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(text(b"a a"), ["a▁a"]);
    assert_eq!(text(b"a b b"), ["a▁", "b", "▁b"]);
}

#[test]
fn streamed_character_is_emitted_only_whole() {
    let bpe = Bpe::new();
    let t = Tokenizer::new(&bpe.vocabulary()).unwrap();
    let text = "é 世界 😀\u{10FFFF}!";
    let mut stream = Detokenizer::new(&t, false);
    let mut shown = String::new();
    for id in t.encode(text.as_bytes(), EncodeOptions::PLAIN) {
        if let Some(piece) = stream.push(id).unwrap() {
            assert!(!piece.is_empty() && !piece.contains('\u{FFFD}'));
            shown.push_str(&piece);
            assert!(text.starts_with(&shown));
        }
    }
    assert_eq!((shown.as_str(), stream.finish()), (text, None));
}

#[test]
fn invalid_streamed_bytes_are_replaced_once_certain() {
    let bpe = Bpe::new();
    let t = Tokenizer::new(&bpe.vocabulary()).unwrap();
    let mut stream = Detokenizer::new(&t, false);
    assert_eq!(stream.push(0xF0).unwrap(), None, "may still become a character");
    assert_eq!(stream.push(0x9F).unwrap(), None);
    assert_eq!(stream.push(u32::from(b'a')).unwrap().as_deref(), Some("\u{FFFD}a"));
    assert_eq!(stream.push(0xFF).unwrap().as_deref(), Some("\u{FFFD}"));
    assert_eq!(stream.push(0xE4).unwrap(), None);
    assert_eq!(stream.finish().as_deref(), Some("\u{FFFD}"));
    assert_eq!(stream.finish(), None);
}

#[test]
fn stream_shows_control_tokens_only_on_request() {
    let bpe = Bpe::new();
    let t = Tokenizer::new(&bpe.vocabulary()).unwrap();
    assert_eq!(Detokenizer::new(&t, false).push(262).unwrap(), None);
    assert_eq!(Detokenizer::new(&t, true).push(262).unwrap().as_deref(), Some("<|im_end|>"));
    assert_eq!(
        Detokenizer::new(&t, false).push(263).unwrap().as_deref(),
        Some("<tool>"),
        "user-defined tokens are text"
    );
}

#[test]
fn random_vocabularies_and_texts_do_not_panic() {
    let mut seed = 0xD1B5_4A32_D192_ED03u64;
    let mut next = |n: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 33) as usize % n
    };
    let parts: [&[u8]; 16] = [
        b"a",
        b"b",
        b" ",
        "▁".as_bytes(),
        b"\xFF",
        b"\xC3",
        b"<0x41>",
        b"<0x",
        b"\n",
        "Ġ".as_bytes(),
        b"</s>",
        b"<pad>",
        b"",
        b"'s",
        "好".as_bytes(),
        b"<|im_end|>",
    ];
    let mut built = 0;
    for round in 0..4000 {
        let mut text =
            |max: usize| (0..next(max)).flat_map(|_| parts[next(16)].to_vec()).collect::<Vec<u8>>();
        let tokens: Vec<Vec<u8>> = (0..12).map(|_| text(4)).collect();
        let merges: Vec<Vec<u8>> =
            (0..4).map(|_| [text(3), b"a b".to_vec(), text(3)].concat()).collect();
        let input = text(30);
        let mut some = |n: usize| (next(3) > 0).then(|| next(n) as u32);
        let special = SpecialIds {
            bos: some(12),
            eos: some(13),
            unk: some(12),
            sep: some(12),
            ..Default::default()
        };
        let vocabulary = Vocabulary {
            model: ["gpt2", "gemma4", "llama", "bert"][round % 4],
            pre: [None, Some("llama-bpe"), Some("deepseek-v3"), Some("")][round / 4 % 4],
            tokens: tokens.iter().take(1 + next(12)).map(Vec::as_slice).collect(),
            types: (next(2) == 0).then(|| (0..12).map(|_| next(8) as i32).collect()),
            scores: (next(2) == 0).then(|| {
                vec![f32::NAN, 1.0, -1.0, 0.0, f32::INFINITY, -0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
            }),
            merges: (next(8) > 0).then(|| merges.iter().map(Vec::as_slice).collect()),
            special,
            add_bos: Some(next(2) == 0),
            name: Some("Phi-3"),
            ..Default::default()
        };
        let Ok(t) = Tokenizer::new(&vocabulary) else { continue };
        built += 1;
        for options in [EncodeOptions::PLAIN, EncodeOptions::PROMPT, EncodeOptions::RAW_PROMPT] {
            let ids = t.encode(&input, options);
            assert!(ids.iter().all(|&id| (id as usize) < t.n_vocab()), "round {round}");
            t.decode(&ids).unwrap();
            let mut stream = Detokenizer::new(&t, true);
            ids.iter().for_each(|&id| drop(stream.push(id).unwrap()));
        }
    }
    assert!(built > 200, "only {built} vocabularies could be built");
}
