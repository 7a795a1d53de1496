//! The table of a benchmark.

use crate::args::{BenchOutput, Shared};
use crate::engine::engine;
use crate::load::weights;
use crate::ranks::answers;
use kjit_model::Model;
use kjit_model::device::DeviceTaken;
use kjit_model::gpu::Streamed;
use serde_json::json;
use std::io::Write;

/// A row: the name of the test, and tokens per second of each repetition.
pub(super) struct Row {
    pub test: String,
    pub rates: Vec<f64>,
    /// Number of tokens computed with each reading of the weights. `None` if there is no such
    /// limit.
    pub together: Option<usize>,
}

/// Values that all rows share.
pub(super) struct Head<'a> {
    pub device: &'a DeviceTaken,
    /// Bytes of all weights.
    pub weights: u64,
    /// Bytes of the weights that a token reads.
    pub per_token: u64,
    /// Memory bandwidth in bytes per second. `None` if two memories are read one after the other.
    pub limit: Option<f64>,
    /// Whether layers are streamed. In this case the limit is the copy rate, and the bytes of a
    /// token are the bytes that are copied.
    pub streamed: Option<Streamed>,
}

impl<'a> Head<'a> {
    /// The values of the measured model.
    pub fn of(model: &'a Model, shared: &Shared) -> anyhow::Result<Head<'a>> {
        let (weights, per_token) = weights(model);
        let streamed = model.session.gpu().and_then(|gpu| gpu.statistics().streamed);
        let (per_token, limit) = match streamed {
            Some(streamed) => (streamed.bytes, Some(streamed.rate)),
            None if model.session.gpu().is_some_and(|gpu| !gpu.plan().decode.pauses.is_empty()) => {
                (per_token, None)
            }
            None => (per_token, Some(bandwidth(model.device(), shared)?)),
        };
        Ok(Head { device: model.device(), weights, per_token, limit, streamed })
    }
}

impl Row {
    fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len().max(1) as f64
    }

    /// Standard deviation of the repetitions (n − 1).
    fn sd(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.rates.iter().map(|r| (r - mean).powi(2)).sum();
        (squares / self.rates.len().saturating_sub(1).max(1) as f64).sqrt()
    }
}

pub(super) fn name(kind: &str, n: usize, depth: usize) -> String {
    match depth {
        0 => format!("{kind}{n}"),
        d => format!("{kind}{n} @ {d}"),
    }
}

/// Percentage of the bandwidth that is needed to read the weights once per step.
pub(super) fn share(row: &Row, head: &Head<'_>) -> Option<f64> {
    let (together, limit) = (row.together? as f64, head.limit.filter(|limit| *limit > 0.0)?);
    Some(row.mean() / together * head.per_token as f64 / limit * 100.0)
}

pub(super) fn print(rows: &[Row], output: BenchOutput, head: &Head<'_>) -> anyhow::Result<()> {
    let (device, limit) = (head.device, head.limit.map(|limit| limit / 1e9));
    let mut out = answers();
    match output {
        BenchOutput::Md => {
            let what = if head.streamed.is_some() { " copied" } else { "" };
            // Without a limit the column is omitted.
            let (of, line) = limit
                .map_or_else(Default::default, |l| (format!(" of {l:.0} GB/s{what} |"), "---|"));
            writeln!(out, "| device | test | tok/s |{of}\n|---|---|---|{line}")?;
            for r in rows {
                let part = share(r, head).map_or(String::new(), |p| format!("{p:.0} %"));
                let part = limit.map_or(String::new(), |_| format!(" {part} |"));
                writeln!(
                    out,
                    "| {} | {} | {:.2} ± {:.2} |{part}",
                    device.name,
                    r.test,
                    r.mean(),
                    r.sd()
                )?;
            }
        }
        BenchOutput::Csv => {
            writeln!(out, "device,test,tok_s,sd,limit_gb_s,percent_of_limit")?;
            for r in rows {
                let part = share(r, head).map_or(String::new(), |p| format!("{p:.1}"));
                let name = device.name.replace('"', "");
                let limit = limit.map_or(String::new(), |limit| format!("{limit:.1}"));
                writeln!(
                    out,
                    "\"{name}\",{},{:.3},{:.3},{limit},{part}",
                    r.test,
                    r.mean(),
                    r.sd()
                )?;
            }
        }
        BenchOutput::Json => {
            let rows: Vec<_> = rows
                .iter()
                .map(|r| {
                    let part = share(r, head);
                    json!({ "test": r.test, "tok_s": r.mean(), "sd": r.sd(), "all": r.rates, "percent_of_limit": part })
                })
                .collect();
            let device = json!({ "kind": device.kind, "name": device.name, "arch": device.arch });
            let streamed = head
                .streamed
                .map(|s| json!({ "layers": s.layers, "of": s.of, "bytes": s.bytes, "copy_gb_s": s.rate / 1e9 }));
            let doc = json!({
                "device": device, "weights": head.weights, "bytes_per_token": head.per_token, "limit_gb_s": limit,
                "streamed": streamed, "tests": rows,
            });
            writeln!(out, "{doc}")?;
        }
    }
    Ok(())
}

/// Measures the bandwidth of the device's memory in bytes per second.
pub(super) fn bandwidth(device: &DeviceTaken, shared: &Shared) -> anyhow::Result<f64> {
    match device.threads {
        None => {
            Ok(kjit_model::gpu::bandwidth::copy_bandwidth(&engine(shared).device(&device.label)?)?)
        }
        Some(threads) => Ok(kjit_model::host::read_bandwidth(threads)),
    }
}
