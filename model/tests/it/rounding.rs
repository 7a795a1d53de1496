//! What roundings to f16 change in logits. A model may amplify them a thousand times, so devices
//! are compared with a host whose keys and values have the same type.

use super::support::draws::{goldens, of};
use super::support::rounding::{logits_with, noisy_logits, worst_row};
use super::support::solo_session::SoloSession;
use half::f16;
use kjit_model::graph::Op;
use kjit_model::session::{KvType, OpenOptions, Want};
use std::process::Command;

/// Random models of plain attention, of latents, of several streams, and of experts.
const ARCHS: [&str; 4] = ["llama", "deepseek2", "gemma3n", "qwen2moe"];

/// `store_kv` rounds keys, values and latents when they are stored, and nothing else.
#[test]
fn precise_host_stores_rounded_keys_and_values() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success()) {
        return eprintln!("SKIPPED: no python3 to draw models with (scripts/draw_archs.py)");
    }
    let (goldens, mut seen) = (goldens(), 0);
    for draw in ARCHS.iter().flat_map(|arch| of(arch, &goldens)) {
        let file = draw.file().unwrap();
        let graph = kjit_model::arch::build(&file).unwrap();
        let options = OpenOptions {
            context: Some(draw.context),
            precise: true,
            threads: 1,
            ..OpenOptions::default()
        };
        let mut exact = SoloSession::cpu(&file, &graph, &options);
        let mut stored = SoloSession::cpu_storing(&file, &graph, &options, KvType::F16);
        let vocab = exact.n_vocab();
        let want = stored.feed(&draw.ids, Want::All).unwrap();
        let plain = exact.feed(&draw.ids, Want::All).unwrap();
        let rounded = logits_with(&mut exact, &draw.ids, &mut |op, inputs| {
            if matches!(op, Op::KvWrite(_)) {
                for x in inputs.iter_mut().flatten() {
                    *x = f16::from_f32(*x).to_f32();
                }
            }
        });
        // f32 sums in another order differ by 2⁻²⁴. At 2⁻¹¹, f16 differs by 8,000 times as much.
        let (same, other) = (worst_row(&rounded, &want, vocab), worst_row(&plain, &want, vocab));
        let noisy = noisy_logits(&mut exact, &draw.ids, 1e-6, 1);
        let amplified = worst_row(&noisy, &plain, vocab) / 1e-6;
        eprintln!(
            "{}: f16 keys and values change logits by {other:.1e}, the order of sums by \
             {same:.1e}; noise is amplified {amplified:.0} times",
            draw.name
        );
        assert!(other > 1e-5, "{}: {other:e}", draw.name);
        assert!(same < 0.1 * other, "{}: {same:e} of {other:e}", draw.name);
        seen += 1;
    }
    assert!(seen >= ARCHS.len());
}
