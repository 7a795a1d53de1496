use super::*;
use crate::tokenizer::unicode::normalize;

fn pieces(name: &str, text: &str) -> Vec<String> {
    let mut out = Vec::new();
    let text = normalize(text.as_bytes());
    Pretokenizer::find(name).unwrap().split(&text, &mut |piece| out.push(String::from_utf8(piece.to_vec()).unwrap()));
    out
}

#[test]
fn gpt_2_keeps_a_space_with_the_word_after_it() {
    assert_eq!(
        pieces("gpt-2", "I'll go  to 12 x's, OK?\n\n "),
        ["I", "'ll", " go", " ", " to", " 12", " x", "'s", ",", " OK", "?", "\n\n "]
    );
}

#[test]
fn llama_3_cuts_numbers_in_threes_and_qwen_2_one_by_one() {
    assert_eq!(pieces("llama-bpe", "a 12345 'S\r\n x"), ["a", " ", "123", "45", " '", "S", "\r\n", " x"]);
    assert_eq!(pieces("qwen2", "a 12345"), ["a", " ", "1", "2", "3", "4", "5"]);
}

#[test]
fn gpt_4o_cuts_before_a_capital_that_follows_a_small_letter() {
    assert_eq!(pieces("gpt-4o", "camelCaseXYZ don'T"), ["camel", "Case", "XYZ", " don'T"]);
    assert_eq!(pieces("tekken", "ABCdéF 12"), ["ABCdé", "F", " ", "1", "2"]);
    assert_eq!(pieces("tekken", "ÀBC"), ["À", "BC"]);
}

#[test]
fn no_pre_tokenizer_loses_or_invents_a_byte() {
    let alphabet: Vec<char> = "aZé好9½ \t\n\r\u{3000}\u{85}.'sl$~\u{301}\u{0}\u{FFFD}😀-”".chars().collect();
    let mut seed = 88172645463325252u64;
    for name in Pretokenizer::names() {
        for len in 0..200 {
            let text: String = (0..len)
                .map(|_| {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    alphabet[(seed >> 32) as usize % alphabet.len()]
                })
                .collect();
            let pieces = pieces(name, &text);
            assert_eq!(pieces.concat(), text, "{name}");
            assert!(pieces.iter().all(|piece| !piece.is_empty()), "{name}: {text:?}");
        }
    }
}

#[test]
fn a_name_is_in_the_list_once() {
    let mut names: Vec<_> = Pretokenizer::names().collect();
    let n = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), n);
}
