//! Tests that options can be written with some of their fields and the default for the rest. This
//! program is another crate, so it fails to build if a new field makes this impossible.

use kjit_engine::source::Options as CompileOptions;
use kjit_model::generate::Request as Generate;
use kjit_model::sample::{Dry, DynamicTemperature, SampleOptions, Xtc};
use kjit_model::serve::{Request, SchedulerOptions};
use kjit_model::session::OpenOptions;
use kjit_model::tokenizer::{DecodeOptions, EncodeOptions};
use std::ops::ControlFlow;

#[test]
fn options_use_set_fields_and_defaults() {
    let open = OpenOptions { sequences: 3, ..Default::default() };
    assert_eq!((open.sequences, open.precise), (3, false));
    let sample = SampleOptions {
        temperature: 0.5,
        xtc: Xtc { probability: 0.5, ..Default::default() },
        dynamic_temperature: DynamicTemperature { range: 0.1, ..Default::default() },
        dry: Dry { multiplier: 0.8, ..Default::default() },
        ..Default::default()
    };
    assert!(sample.needs_host() && !SampleOptions::default().needs_host());
    let scheduler = SchedulerOptions { max_queue: 7, ..Default::default() };
    assert!(scheduler.reuse && scheduler.max_queue == 7);
    let new = Request::new(vec![1], Box::new(|_| ControlFlow::Continue(())));
    let request = Request { lookup: true, ..new };
    assert_eq!(request.tokens, [1]);
    let generate = Generate { prompt: &[1, 2], ..Default::default() };
    assert!(generate.stop.is_empty() && generate.max_tokens.is_none());
    let encode = EncodeOptions { parse_special: true, ..Default::default() };
    assert!(!encode.add_special);
    assert_eq!(EncodeOptions::default(), EncodeOptions::PLAIN);
    let decode = DecodeOptions { remove_special: true, ..Default::default() };
    assert!(!decode.unparse_special);
    let compile = CompileOptions { fast_math: true, ..CompileOptions::wave(64) };
    assert_eq!(compile.wave, 64);
    // Options that were written before a field was added can still be read.
    let read: SampleOptions = serde_json::from_str(r#"{"top_k": 5}"#).unwrap();
    assert_eq!(read, SampleOptions { top_k: 5, ..Default::default() });
}
