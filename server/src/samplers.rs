//! Samplers beyond OpenAI's, under llama.cpp's names: DRY, XTC, typical, top-nσ, the dynamic
//! temperature and mirostat. The CPU applies them: with a GPU, the logits of such answers are
//! copied to the host.

use crate::fields::Fields;
use crate::loaded::Loaded;
use crate::refusal::Refusal;
use crate::sampling::Sampling;
use kjit_model::SampleOptions;
use kjit_model::sample::{Dry, DynamicTemperature, Mirostat, MirostatVersion, Xtc};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of breakers in a request, and maximum bytes of one.
const MAX_BREAKERS: usize = 16;
const MAX_BYTES: usize = 64;

/// Reads the fields. Returns the options with them, and the strings of the breakers.
///
/// # Errors
/// A value is out of its range.
pub fn read(f: &mut Fields, options: SampleOptions) -> Result<Sampling, Refusal> {
    fn number(
        f: &mut Fields,
        name: &str,
        range: std::ops::RangeInclusive<f64>,
        usual: f32,
    ) -> Result<f32, Refusal> {
        Ok(f.number(name, range)?.unwrap_or(usual))
    }
    let xtc = Xtc {
        probability: number(f, "xtc_probability", 0.0..=1.0, 0.0)?,
        threshold: number(f, "xtc_threshold", 0.0..=1.0, 0.1)?,
    };
    let dynamic_temperature = DynamicTemperature {
        range: number(f, "dynatemp_range", 0.0..=2.0, 0.0)?,
        exponent: number(f, "dynatemp_exponent", 0.01..=10.0, 1.0)?,
    };
    let (tau, eta) =
        (number(f, "mirostat_tau", 0.0..=20.0, 5.0)?, number(f, "mirostat_eta", 0.0..=1.0, 0.1)?);
    let version = match f.whole("mirostat", 0..=2)? {
        Some(1) => Some(MirostatVersion::One),
        Some(2) => Some(MirostatVersion::Two),
        _ => None,
    };
    // In llama.cpp -1 means the whole context, and 0 means off.
    let window = f.whole("dry_penalty_last_n", -1..=1 << 20)?.unwrap_or(-1);
    let multiplier = number(f, "dry_multiplier", 0.0..=100.0, 0.0)?;
    let dry = Dry {
        multiplier: if window == 0 { 0.0 } else { multiplier },
        base: number(f, "dry_base", 1.0..=10.0, 1.75)?,
        allowed_length: f.count("dry_allowed_length", 0..=1024)?.unwrap_or(2),
        window: usize::try_from(window).unwrap_or(Dry::default().window),
        breakers: vec![],
    };
    let given = f.peek("dry_sequence_breakers").is_some();
    let breakers = f.texts("dry_sequence_breakers", MAX_BREAKERS)?;
    if !breakers.iter().all(|text| (1..=MAX_BYTES).contains(&text.len())) {
        let why = format_args!("give texts of 1 to {MAX_BYTES} bytes");
        return Err(f.wrong("dry_sequence_breakers", why));
    }
    let breakers = match given {
        true => breakers,
        false => Dry::BREAKERS.map(str::to_owned).to_vec(),
    };
    let options = SampleOptions {
        typical_p: number(f, "typical_p", 0.0..=1.0, 1.0)?,
        top_n_sigma: number(f, "top_n_sigma", -1.0..=100.0, 0.0)?,
        xtc,
        dynamic_temperature,
        dry,
        mirostat: version.map(|version| Mirostat { version, tau, eta }),
        ..options
    };
    Ok(Sampling { options, breakers })
}

/// Breakers of recent requests: the strings, and the tokens that contain one of them.
#[derive(Default)]
pub struct Breakers(Mutex<Vec<Found>>);

type Found = (Vec<String>, Arc<Vec<u32>>);

/// Maximum number of cached lists.
const MAX_LISTS: usize = 8;

impl Breakers {
    /// The tokens whose text contains one of these strings, in ascending order. The first call
    /// reads the whole vocabulary: too slow for an async thread.
    pub fn of(&self, loaded: &Loaded, texts: &[String]) -> Arc<Vec<u32>> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, ids)) = lock().iter().find(|(of, _)| of == texts) {
            return Arc::clone(ids);
        }
        let ids = Arc::new(loaded.tokenizer.ids_with_any(texts));
        let mut all = lock();
        if all.len() >= MAX_LISTS {
            all.remove(0);
        }
        all.push((texts.to_vec(), Arc::clone(&ids)));
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_cpp_fields_are_read_and_wrong_values_named() {
        let read = |json: &str| {
            let mut f = Fields::parse(json.as_bytes()).unwrap();
            let read = read(&mut f, SampleOptions::default());
            f.done().unwrap();
            read.map_err(|why| why.message().to_owned())
        };
        let all = r#"{"mirostat": 2, "mirostat_tau": 4, "dry_multiplier": 0.8, "dry_penalty_last_n": 64,
            "dry_sequence_breakers": ["\n"], "xtc_probability": 0.5, "typical_p": 0.9,
            "top_n_sigma": 1.5, "dynatemp_range": 0.25}"#;
        let Sampling { options, breakers } = read(all).unwrap();
        assert_eq!(breakers, ["\n"]);
        assert_eq!((options.dry.window, options.dry.multiplier), (64, 0.8));
        assert_eq!(options.mirostat.unwrap().tau, 4.0);
        assert_eq!((options.typical_p, options.top_n_sigma), (0.9, 1.5));
        assert_eq!((options.xtc.probability, options.dynamic_temperature.range), (0.5, 0.25));
        let neutral = r#"{"mirostat": 0, "typical_p": 1, "top_n_sigma": -1, "dry_multiplier": 0.8,
            "dry_penalty_last_n": 0, "xtc_probability": 0, "dynatemp_range": 0}"#;
        let warm = SampleOptions { temperature: 1.0, ..read(neutral).unwrap().options };
        assert!(!warm.needs_host());
        for (json, why) in [
            (r#"{"mirostat": 3}"#, "'mirostat': give a whole number from 0 to 2"),
            (r#"{"typical_p": "1"}"#, "'typical_p': give a number from 0 to 1"),
            (
                r#"{"dry_sequence_breakers": [""]}"#,
                "'dry_sequence_breakers': give texts of 1 to 64 bytes",
            ),
        ] {
            assert_eq!(read(json).unwrap_err(), why);
        }
    }
}
