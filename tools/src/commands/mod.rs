//! One file per command, or per few that are one idea.

pub mod bench;
mod bench_batch;
pub mod cache;
pub mod chat;
pub mod dequant;
pub mod devices;
pub mod doctor;
mod doctor_report;
mod emit;
pub mod inspect;
pub mod kernels;
pub mod logits;
pub mod perplexity;
pub mod run;
pub mod text;
pub mod warm;
