//! Integration tests of the model, one module for each part. Some tests set variables or signal
//! handlers of their process, so each test needs its own process (as with nextest).

mod adapters;
mod archs;
mod catalogue;
#[cfg(feature = "constrain")]
mod constrain;
#[cfg(feature = "constrain")]
mod constrain_reply;
mod folder;
mod gpu_archs;
mod gpu_compiled;
mod gpu_plan;
mod gpu_simulated;
mod gpu_tuned;
mod host_golden;
mod host_oracle;
mod images;
mod options;
mod rounding;
mod serve;
mod serve_launched;
mod serve_slow;
mod session;
mod stages;
#[path = "../support/mod.rs"]
mod support;
