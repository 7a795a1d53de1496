//! One file for each command, or for a few related commands.

pub mod bench;
mod bench_side_by_side;
mod bench_table;
pub mod cache;
pub mod chat;
pub mod dequant;
pub mod devices;
pub mod doctor;
mod doctor_report;
pub mod embed;
mod emit;
pub mod hub;
pub mod inspect;
pub mod kernels;
pub mod logits;
pub mod merge;
pub mod packaging;
pub mod perplexity;
pub mod probe;
mod probe_models;
mod probe_report;
pub mod ps;
pub mod run;
pub mod serve;
mod statistics;
pub mod text;
pub mod warm;
