//! Tests of ranges against arithmetic.

use super::{Bound, Decimal, Numbers};
use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
use serde_json::Number;

fn bound(text: &str, open: bool) -> Option<Bound> {
    let number: Number = serde_json::from_str(text).unwrap();
    Some(Bound { at: Decimal::of(&number).unwrap(), open })
}

/// The terminal as an automaton; `None` if there is no number.
fn made(numbers: &Numbers) -> Option<Regex> {
    let terminal = numbers.terminal()?;
    let inner =
        terminal.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(&terminal);
    let parts = inner.split(" & ").map(|part| RegexAst::Regex(part.trim_matches('/').to_owned()));
    let mut builder = RegexBuilder::new();
    let made =
        builder.mk(&RegexAst::And(parts.collect())).unwrap_or_else(|e| panic!("{e}: {terminal}"));
    Some(builder.to_regex(made))
}

fn matches(numbers: &Numbers, text: &str) -> bool {
    made(numbers).is_some_and(|mut made| made.is_match(text))
}

#[test]
fn integer_ranges_match_arithmetic() {
    let ends = [-1000i64, -101, -100, -99, -10, -1, 0, 1, 9, 10, 11, 99, 100, 105, 999, 1000];
    for least in ends {
        for most in ends {
            for open in [false, true] {
                let numbers = Numbers {
                    whole: true,
                    least: bound(&least.to_string(), open),
                    most: bound(&most.to_string(), false),
                    multiples: vec![],
                };
                let Some(mut made) = made(&numbers) else {
                    assert!(least + i64::from(open) > most, "{least} {most}");
                    continue;
                };
                for n in [
                    -1001, -1000, -555, -101, -100, -99, -10, -9, -1, 0, 1, 5, 9, 10, 100, 104,
                    998, 1000, 1001,
                ] {
                    let want = n >= least + i64::from(open) && n <= most;
                    assert_eq!(
                        made.is_match(&n.to_string()),
                        want,
                        "{n} in {least}..={most}, {open}"
                    );
                }
            }
        }
    }
}

#[test]
fn integer_bounds_above_53_bits_are_exact() {
    let numbers = Numbers {
        whole: true,
        least: bound("9007199254740993", false),
        most: bound("18446744073709551615", false),
        multiples: vec![],
    };
    for (text, want) in [
        ("9007199254740992", false),
        ("9007199254740993", true),
        ("18446744073709551615", true),
        ("18446744073709551616", false),
    ] {
        assert_eq!(matches(&numbers, text), want, "{text}");
    }
    // 2^64 does not fit in 64 bits, and its shortest text as f64 is a different number.
    let numbers = Numbers { most: bound("18446744073709551616", false), ..numbers };
    for (text, want) in [
        ("18446744073709551616", true),
        ("18446744073709551617", false),
        ("18446744073709552000", false),
    ] {
        assert_eq!(matches(&numbers, text), want, "{text}");
    }
    // Bounds that are outside the numbers of an answer.
    for whole in [false, true] {
        let far = |least, most| Numbers { whole, least, most, ..Numbers::default() };
        assert_eq!(far(bound("1e300", false), None).terminal(), None);
        assert_eq!(far(None, bound("-1e300", false)).terminal(), None);
        let all = far(bound("-1e300", false), bound("1e300", false));
        assert!(matches(&all, "-5") && matches(&all, "12"));
    }
    let free = Numbers { whole: true, ..Numbers::default() };
    assert!(matches(&free, &"1".repeat(19)) && !matches(&free, &"1".repeat(20)));
    let open = Numbers { whole: true, least: bound("0", false), ..Numbers::default() };
    assert!(matches(&open, "0") && !matches(&open, "-1") && !matches(&open, &"1".repeat(20)));
    let any = Numbers::default();
    for (text, want) in [
        ("0", true),
        ("-0.5", true),
        ("1.5e-3", true),
        ("1e300", false),
        ("1e289", true),
        ("12345678901234567", true),
        ("123456789012345678", false),
        ("1234567890.1234567", true),
        ("1234567890.12345678", false),
        ("0.12345678901234567", true),
        ("0.00000000000000000000000000000000001", false),
        ("01", false),
        ("1.", false),
    ] {
        assert_eq!(matches(&any, text), want, "{text}");
    }
}

#[test]
fn fraction_ranges_match_arithmetic() {
    let ends = [
        "-12.5", "-1.25", "-1", "-0.1", "0", "0.05", "0.5", "0.75", "1", "1.2", "9.99", "10",
        "100.001",
    ];
    let mut tried: Vec<String> = ends.iter().map(|text| (*text).to_owned()).collect();
    for text in ends {
        tried.extend(
            ["01", "5", "9"]
                .map(|more| format!("{text}{}{more}", if text.contains('.') { "" } else { "." })),
        );
    }
    tried.extend(
        ["2", "3.7", "11", "55.5", "-3", "-0.05", "0.6", "0.0501", "1.0", "0.50"].map(String::from),
    );
    for least in ends.iter().map(Some).chain([None]) {
        for most in ends.iter().map(Some).chain([None]) {
            for open in [false, true] {
                let numbers = Numbers {
                    least: least.and_then(|text| bound(text, open)),
                    most: most.and_then(|text| bound(text, open)),
                    ..Numbers::default()
                };
                if least.is_none() && most.is_none() {
                    continue;
                }
                let mut made = made(&numbers);
                for text in &tried {
                    let n: f64 = text.parse().unwrap();
                    let end = |text: &&str| text.parse::<f64>().unwrap();
                    let above =
                        least.map(end).is_none_or(|least| n > least || (!open && n == least));
                    let below = most.map(end).is_none_or(|most| n < most || (!open && n == most));
                    let is = made.as_mut().is_some_and(|made| made.is_match(text));
                    assert_eq!(is, above && below, "{text} in {least:?}..{most:?}, {open}");
                }
            }
        }
    }
    let cents = Numbers {
        least: bound("0", false),
        multiples: vec![serde_json::from_str("0.01").unwrap()],
        ..Numbers::default()
    };
    assert!(matches(&cents, "3.25") && matches(&cents, "4") && !matches(&cents, "3.255"));
}
