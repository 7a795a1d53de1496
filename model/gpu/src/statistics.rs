//! Times and memory of opening.

use crate::verify::VerifyStatistics;
use kjit_engine::CompileCounts;

/// Times and memory of opening.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Statistics {
    /// Counts of the compile service for this model.
    pub kernels: CompileCounts,
    /// Bytes of weights on the device.
    pub weights: u64,
    /// Bytes of keys and values of full contexts.
    pub kv: u64,
    /// Bytes in use on the device, by all programs.
    pub peak: u64,
    /// Streamed layers; `None` if all are resident.
    pub streamed: Option<Streamed>,
    /// Seconds until the last byte of the weights was uploaded.
    pub upload_s: f64,
    /// Seconds until the last kernel was loaded.
    pub kernels_s: f64,
    /// Time and counts of kernel verification, if it ran.
    pub proven: VerifyStatistics,
}

/// Streamed layers and their copy rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Streamed {
    /// Streamed layers.
    pub layers: usize,
    /// Layers of the model.
    pub of: usize,
    /// Layers with a part on the CPU. That part is copied only for long prompts.
    pub apart: usize,
    /// Bytes copied in each step.
    pub bytes: u64,
    /// Bytes per second of these copies, measured at opening.
    pub rate: f64,
}

impl Streamed {
    /// Maximum steps per second that the copies allow. For one sequence this is tokens per second.
    pub fn most(&self) -> f64 {
        self.rate / self.bytes.max(1) as f64
    }
}

impl std::fmt::Display for Streamed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Streamed { layers, of, apart, rate, .. } = self;
        let theirs = if *apart > 0 {
            format!(", the CPU computes a part of {apart}")
        } else {
            String::new()
        };
        write!(
            f,
            "{} of {of} layers stay on the GPU, {layers} are streamed{theirs}: \
             at most {:.1} tok/s at the measured copy rate of {:.1} GB/s",
            of - layers - apart,
            self.most(),
            rate / 1e9
        )
    }
}
