//! Fields of other servers that kjit does not have. A neutral value is accepted; any other value is
//! refused by name.

use crate::fields::Fields;
use crate::refusal::Refusal;
use serde_json::Value;

/// Numeric fields with their neutral values.
const NUMBERS: [(&str, f64); 6] = [
    ("tfs_z", 1.0),
    ("top_a", 0.0),
    ("n_probs", 0.0),
    ("min_keep", 0.0),
    ("length_penalty", 1.0),
    ("truncate_prompt_tokens", -1.0),
];

/// Boolean fields with their neutral values.
const FLAGS: [(&str, bool); 4] = [
    ("skip_special_tokens", true),
    ("spaces_between_special_tokens", true),
    ("use_beam_search", false),
    ("include_stop_str_in_output", false),
];

/// Text fields with their neutral values.
const TEXTS: [(&str, &str); 1] = [("verbosity", "medium")];

/// Fields without effect on answers: they only tell a server how to compute.
const WITHOUT_EFFECT: [&str; 5] =
    ["cache_prompt", "id_slot", "slot_id", "timings_per_token", "return_progress"];

/// Takes these fields out of a request.
///
/// # Errors
/// A field has a value that is not neutral.
pub fn take(f: &mut Fields) -> Result<(), Refusal> {
    for (name, neutral) in NUMBERS {
        if f.take(name).is_some_and(|value| value.as_f64() != Some(neutral)) {
            return Err(
                f.wrong(name, format_args!("is not supported: remove it, or set it to {neutral}"))
            );
        }
    }
    for (name, neutral) in FLAGS {
        if f.take(name).is_some_and(|value| value != Value::Bool(neutral)) {
            return Err(
                f.wrong(name, format_args!("is not supported: remove it, or set it to {neutral}"))
            );
        }
    }
    for (name, neutral) in TEXTS {
        if f.take(name).is_some_and(|value| value != neutral) {
            return Err(
                f.wrong(name, format_args!("is not supported: remove it, or set it to {neutral}"))
            );
        }
    }
    f.ignore(&WITHOUT_EFFECT);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Fields, take};

    #[test]
    fn neutral_value_is_accepted_and_others_refused() {
        let read = |json: &str| {
            let mut f = Fields::parse(json.as_bytes()).unwrap();
            take(&mut f).and_then(|()| f.done()).map_err(|why| why.message().to_owned())
        };
        let neutral = r#"{"top_a": 0, "n_probs": 0, "tfs_z": 1.0, "skip_special_tokens": true,
            "cache_prompt": true, "verbosity": "medium"}"#;
        assert_eq!(read(neutral), Ok(()));
        for (json, why) in [
            (r#"{"top_a": 0.5}"#, "'top_a': is not supported: remove it, or set it to 0"),
            (
                r#"{"verbosity": "low"}"#,
                "'verbosity': is not supported: remove it, or set it to medium",
            ),
            (r#"{"tfs_z": "1"}"#, "'tfs_z': is not supported: remove it, or set it to 1"),
            (
                r#"{"skip_special_tokens": false}"#,
                "'skip_special_tokens': is not supported: remove it, or set it to true",
            ),
        ] {
            assert_eq!(read(json), Err(why.to_owned()));
        }
    }
}
