//! Randomly drawn models (`scripts/draw_archs.py`), and llama.cpp's results for them
//! (`tests/data/oracle/draws.json`).
//!
//! `KJIT_TEST_COUNT=20` sets the number of models for each architecture (3), `KJIT_TEST_ONLY=a,b`
//! selects architectures, `KJIT_TEST_FOLDER=FOLDER` uses existing files (with their `index.json`)
//! instead of drawing them.

use super::oracle::{ids, log_sum_exp, oracle};
use kjit_model::gguf::Gguf;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Number of most likely tokens in a golden. Their ids and logits follow the sums.
const TOP: usize = 8;

/// A drawn model.
pub struct Draw {
    /// Name of the model, such as `gemma2-7`.
    pub name: String,
    /// Architecture of the model.
    pub arch: String,
    /// The prompt.
    pub ids: Vec<u32>,
    /// Size of the context when llama.cpp ran.
    pub context: usize,
    /// Whether the result is an embedding vector.
    pub vector: bool,
    pub path: PathBuf,
    /// llama.cpp's results; `None` if llama.cpp refuses the file.
    pub golden: Option<Vec<f32>>,
}

impl Draw {
    /// Opens the file.
    pub fn file(&self) -> Result<Arc<Gguf>, String> {
        Gguf::open(&self.path).map(Arc::new).map_err(|e| e.to_string())
    }

    /// The distance of rows of logits from the golden. It is the largest difference of log Σ eˣ
    /// over the positions, and the KL of the last position's most likely tokens, with all other
    /// tokens as one.
    pub fn off(&self, golden: &[f32], rows: &[f32], vocab: usize) -> (f64, f64) {
        let (sums, top) = golden.split_at(self.ids.len());
        if rows.len() != sums.len() * vocab || top.len() != 2 * TOP {
            return (f64::INFINITY, f64::INFINITY);
        }
        let mut most = 0f64;
        for (row, sum) in rows.chunks_exact(vocab).zip(sums) {
            let apart = (log_sum_exp(row) - f64::from(*sum)).abs();
            most = if apart.is_nan() { f64::INFINITY } else { most.max(apart) };
        }
        let last = &rows[rows.len() - vocab..];
        let (p_sum, q_sum) = (f64::from(sums[sums.len() - 1]), log_sum_exp(last));
        let (mut kl, mut p_rest, mut q_rest) = (0.0, 1.0, 1.0);
        for pair in top.chunks_exact(2) {
            let (lp, lq) = (f64::from(pair[1]) - p_sum, f64::from(last[pair[0] as usize]) - q_sum);
            kl += lp.exp() * ((lp - lq) + (lq - lp).exp() - 1.0);
            (p_rest, q_rest) = (p_rest - lp.exp(), q_rest - lq.exp());
        }
        if p_rest > 1e-6 && q_rest > 1e-6 {
            kl += p_rest * ((p_rest / q_rest).ln() + q_rest / p_rest - 1.0);
        }
        (most, if kl.is_nan() { f64::INFINITY } else { kl })
    }
}

/// All goldens, by architecture.
pub fn goldens() -> Value {
    oracle("draws.json")
}

/// The path of `scripts/draw_archs.py`: in the repository, or otherwise below the working directory
/// (if the test program was copied to another machine).
fn script() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/draw_archs.py");
    if built.exists() { built } else { PathBuf::from("scripts/draw_archs.py") }
}

/// Calls `test` with every selected model on `threads` threads. Returns the errors, one line each,
/// and the number of models. Without Python it prints a message and runs no model.
pub fn each(
    threads: usize,
    test: impl Fn(&Draw) -> Result<(), String> + Sync,
) -> Option<(Vec<String>, usize)> {
    let goldens = goldens();
    let only = std::env::var("KJIT_TEST_ONLY").ok();
    let archs: Vec<&str> =
        goldens["draws"].as_object().unwrap().keys().map(String::as_str).collect();
    let archs: Vec<&str> = archs
        .into_iter()
        .filter(|a| only.as_deref().is_none_or(|only| only.split(',').any(|o| o == *a)))
        .collect();
    if !Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success()) {
        eprintln!("SKIPPED: no python3 to draw models with (scripts/draw_archs.py)");
        return None;
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let run = || {
        let (mut wrong, mut count) = (vec![], 0);
        while let Some(arch) = archs.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            for draw in of(arch, &goldens) {
                count += 1;
                wrong.extend(test(&draw).err().map(|e| format!("{}: {e}", draw.name)));
            }
        }
        (wrong, count)
    };
    let found: Vec<_> = std::thread::scope(|s| {
        let all: Vec<_> = (0..threads).map(|_| s.spawn(run)).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let count = found.iter().map(|(_, n)| n).sum();
    let mut wrong: Vec<String> = found.into_iter().flat_map(|(w, _)| w).collect();
    wrong.sort();
    Some((wrong, count))
}

/// Draws the models of an architecture in a folder that is removed with the returned value.
pub fn of(arch: &str, goldens: &Value) -> DrawnModels {
    let draws = std::env::var("KJIT_TEST_COUNT").unwrap_or("3".to_owned());
    let there = std::env::var_os("KJIT_TEST_FOLDER").map(PathBuf::from);
    let made = there.is_none();
    let folder = there.unwrap_or_else(|| {
        let name = format!("kjit-draws-{}-{arch}", std::process::id());
        std::env::temp_dir().join(name)
    });
    if made {
        let mut command = Command::new("python3");
        let out = command
            .arg(script())
            .arg("--out")
            .arg(&folder)
            .args(["--draws", &draws, arch])
            .output()
            .unwrap();
        assert!(out.status.success(), "{arch}: {}", String::from_utf8_lossy(&out.stderr));
    }
    let index: Value =
        serde_json::from_slice(&std::fs::read(folder.join("index.json")).unwrap()).unwrap();
    let mut all = vec![];
    for entry in index.as_array().unwrap().iter().filter(|e| e["arch"] == arch) {
        let name = entry["name"].as_str().unwrap().to_owned();
        let number: usize = name.rsplit('-').next().unwrap().parse().unwrap();
        let golden = match &goldens["draws"][arch][number] {
            Value::String(text) => Some(floats(text)),
            _ => None,
        };
        let path = folder.join(format!("{name}.gguf"));
        let (context, vector) =
            (entry["context"].as_u64().unwrap() as usize, entry["vector"] == true);
        all.push(Draw {
            name,
            arch: arch.to_owned(),
            ids: ids(&entry["ids"]),
            context,
            vector,
            path,
            golden,
        });
    }
    DrawnModels { all, folder: made.then_some(folder) }
}

/// Drawn models. Their files are removed after the last one.
pub struct DrawnModels {
    all: Vec<Draw>,
    folder: Option<PathBuf>,
}

impl IntoIterator for DrawnModels {
    type Item = Draw;
    type IntoIter = Files;
    fn into_iter(mut self) -> Files {
        Files { all: std::mem::take(&mut self.all).into_iter(), folder: self.folder.take() }
    }
}

/// Yields the models in order; the folder is removed after the last one.
pub struct Files {
    all: std::vec::IntoIter<Draw>,
    folder: Option<PathBuf>,
}

impl Iterator for Files {
    type Item = Draw;
    fn next(&mut self) -> Option<Draw> {
        self.all.next()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Decodes base64 into f32 values.
pub fn floats(text: &str) -> Vec<f32> {
    const CODE: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = text.trim_end_matches('=');
    let bits: Vec<u8> =
        text.bytes().map(|c| CODE.iter().position(|&x| x == c).unwrap() as u8).collect();
    let bytes: Vec<u8> = bits
        .chunks(4)
        .flat_map(|c| {
            let n = c.iter().fold(0u32, |n, &b| n << 6 | u32::from(b)) << (6 * (4 - c.len()));
            n.to_be_bytes()[1..c.len()].to_vec()
        })
        .collect();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}
