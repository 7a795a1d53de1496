//! Rotary position embedding: the base and its scaling. If each frequency has its own scale, the
//! scales become a tensor, as GGUF converters write it.

use super::header::Header;
use super::json::Object;
use super::kind::Kind;
use crate::Error;
use std::f64::consts::TAU;

/// Writes the keys of the rotation. Files of transformers 5 have `rope_parameters`; older files
/// have `rope_theta` and `rope_scaling`.
pub fn write(
    text: &Object,
    (kind, head): (Kind, u32),
    context: u32,
    header: &mut Header,
) -> Result<(), Error> {
    let key = |name: &str| format!("{}.rope.{name}", kind.arch());
    let all = text.inner("rope_parameters")?;
    let of_layers = |name: &str| all.as_ref().map_or(Ok(None), |all| all.inner(name));
    let (full, local) = (of_layers("full_attention")?, of_layers("sliding_attention")?);
    if let Some(all) = &all
        && (full.is_some() || local.is_some())
    {
        if kind != Kind::Gemma3 {
            return Err(text.bad(
                "rope_parameters",
                "models of this type have one rope_parameters for all layers",
            ));
        }
        all.require("full_attention", full.as_ref())?;
        all.require("sliding_attention", local.as_ref())?;
    }
    let old = text.inner("rope_scaling")?;
    for part in [&all, &full, &local, &old].into_iter().flatten() {
        if part.f64("partial_rotary_factor")?.is_some_and(|part| part != 1.0) {
            return Err(part.bad(
                "partial_rotary_factor",
                "must be 1: RoPE covers the whole head in this type of model",
            ));
        }
    }
    if let Some(local) = &local {
        let name = kind_of(local);
        if local.str(name)?.is_some_and(|kind| kind != "default") {
            return Err(
                local.bad(name, "layers with a sliding window need rope_type default (no scaling)")
            );
        }
    }
    let full = full.or(all);
    let theta = match &full {
        Some(full) => full.f64("rope_theta")?,
        None => None,
    };
    let usual = if kind == Kind::Gemma3 { 1e6 } else { 1e4 };
    let base = theta.or(text.f64("rope_theta")?).unwrap_or(usual);
    header.f32(&key("freq_base"), base);
    if kind.arch() == "llama" {
        // The rows of a GGUF file are reordered, so that adjacent elements rotate together. The
        // rows of a folder have the trained order.
        header.str(&key("pairing"), "halves");
    }
    if kind == Kind::Gemma3 {
        let theta = match local {
            Some(local) => local.f64("rope_theta")?,
            None => None,
        };
        let base = theta.or(text.f64("rope_local_base_freq")?).unwrap_or(1e4);
        header.f32(&key("freq_base_swa"), base);
    }
    let Some(scaling) = full.or(old) else { return Ok(()) };
    let name = kind_of(&scaling);
    let positive = |name: &str| match scaling.f64(name)? {
        Some(x) if x <= 0.0 => Err(scaling.bad(name, "must be above 0")),
        x => Ok(x),
    };
    let factor = || scaling.require("factor", positive("factor")?);
    let kind = match scaling.str(name)? {
        None if scaling.get("factor").is_none() => "default",
        kind => scaling.require("rope_type", kind)?,
    };
    match kind {
        "default" => {}
        "linear" => {
            header.str(&key("scaling.type"), "linear");
            header.f32(&key("scaling.factor"), factor()?);
        }
        "yarn" => {
            for other in ["mscale", "mscale_all_dim", "truncate"] {
                if scaling.get(other).is_some_and(|value| value.as_bool() != Some(true)) {
                    return Err(scaling.bad(other, "kjit does not support this key of YaRN"));
                }
            }
            let factor = factor()?;
            if factor < 1.0 {
                return Err(scaling.bad("factor", "must be 1 or more (YaRN)"));
            }
            let original = scaling
                .u32("original_max_position_embeddings")?
                .filter(|n| *n > 0)
                .unwrap_or(context);
            header.str(&key("scaling.type"), "yarn");
            header.f32(&key("scaling.factor"), factor);
            header.u32(&key("scaling.original_context_length"), original);
            header.f32(&key("scaling.yarn_beta_fast"), positive("beta_fast")?.unwrap_or(32.0));
            header.f32(&key("scaling.yarn_beta_slow"), positive("beta_slow")?.unwrap_or(1.0));
            // GGUF's factor multiplies the factor of YaRN; a folder's factor replaces it.
            if let Some(attention) = positive("attention_factor")? {
                header.f32(&key("scaling.attn_factor"), attention / (1.0 + 0.1 * factor.ln()));
            }
        }
        "llama3" => {
            let number = |name: &str| scaling.require(name, positive(name)?);
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            if high <= low {
                return Err(scaling.bad("high_freq_factor", "must be above low_freq_factor"));
            }
            let original = number("original_max_position_embeddings")?;
            header
                .vector("rope_freqs.weight", &llama3(head, base, factor()?, (low, high), original));
        }
        _ => return Err(scaling.bad(name, "expected default, linear, llama3 or yarn")),
    }
    Ok(())
}

/// The key of the kind of scaling. Older files have a different key.
fn kind_of(scaling: &Object) -> &'static str {
    if scaling.get("rope_type").is_some() { "rope_type" } else { "type" }
}

/// Llama 3.1's frequency divisors: 1 for wavelengths that are short relative to the original
/// context, the whole factor for long wavelengths, and an interpolated divisor between them.
fn llama3(head: u32, base: f64, factor: f64, (low, high): (f64, f64), original: f64) -> Vec<f32> {
    let divisor = |i: u32| {
        let wave = TAU * base.powf(f64::from(2 * i) / f64::from(head));
        let smooth = ((original / wave - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
    };
    (0..head / 2).map(divisor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of Llama 3.1 and 3.2, computed independently.
    #[test]
    fn llama_3_scaling_divides_slow_frequencies() {
        let divisors = llama3(128, 5e5, 8.0, (1.0, 4.0), 8192.0);
        assert_eq!(divisors.len(), 64);
        assert!(
            divisors[..29].iter().all(|d| *d == 1.0) && divisors[35..].iter().all(|d| *d == 8.0)
        );
        for (divisor, want) in
            divisors[29..].iter().zip([1.20748, 1.55341, 2.02631, 2.69453, 3.68425, 5.25733])
        {
            assert!((divisor - want).abs() < 1e-5, "{divisor}, not {want}");
        }
    }
}
