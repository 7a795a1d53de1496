//! Helpers of the tests that cross crates: the simulated AMD device (`hipsim/`, see its README) and
//! the modules shared with the tests of `model`.
//!
//! # Variables of tests and scripts
//!
//! - `KJIT_TEST_MODELS`: folder of the test models (`.models`)
//! - `KJIT_TEST_DEVICE`: device of GPU tests (`cuda:0`)
//! - `KJIT_REQUIRE_GPU`: GPU tests without a GPU fail instead of skipping
//! - `KJIT_TEST_SEED`: repeats a random test with the seed that it printed
//! - `KJIT_TEST_ALL`: names, separated by commas, of tests that run all their cases, not only some:
//!   `compile` (kernel matrix, minutes), `emulate` (machine code), `archs` (every architecture and
//!   folders on simulated devices, ten minutes), `sequences` (all numbers of sequences, three
//!   minutes), `warm` (a third of the models for each card), `trust` (each instruction with wrong
//!   results), `fleet` (routers, lm-evaluation-harness, Codex CLI: installs large packages),
//!   `smollm2`, `streamed`, `stages`, `folder` (SmolLM2 on simulated devices, in 64 MB, on two
//!   devices, as a folder)
//! - `KJIT_TEST_ONLY`: runs only cases, kernels or architectures whose names contain it
//!   (architectures: names separated by commas; empty: all cases)
//! - `KJIT_TEST_COUNT`, `KJIT_TEST_FROM`: number of random inputs of a test, and the number of the
//!   first one: requests, schemas, random models (3; 20 have stored results), tokens
//! - `KJIT_TEST_FOLDER`: folder of architectures' models, below `.models` or absolute
//!   (`scripts/draw_archs.py --out`)
//! - `KJIT_TEST_OUT`: file or folder for the output of a test: plans (`gpu_archs`), seeds of
//!   fuzzers, measurements of `compile`, the source of a whole token's kernel
//! - `KJIT_TEST_COMMAND`: the `kjit` that server tests start
//! - `KJIT_TEST_BROWSER`, `KJIT_TEST_SCREENSHOTS`: a Chromium for the tests of the chat page; a
//!   folder for its screenshots
//! - `KJIT_TEST_SEQUENCES`, `KJIT_TEST_PATIENT`, `KJIT_TEST_SHARD`: `gpu_model` and `device` under
//!   compute-sanitizer: the numbers of sequences; a time limit of an hour; part `0/6` of the cases
//! - `KJIT_LIBLLVM`: LLVM library of the emulator
//! - `KJIT_ROCM_HEADERS`: folder of AMD's headers, with which `engine/sys` is compared

/// Whether a test runs all its cases. `KJIT_TEST_ALL` is a comma-separated list of names.
pub fn all(name: &str) -> bool {
    std::env::var("KJIT_TEST_ALL").is_ok_and(|all| all.split(',').any(|one| one == name))
}

pub mod dispatch;
pub mod emulated;
#[path = "../../model/tests/support/files.rs"]
pub mod files;
#[path = "../../model/gguf/tests/it/support/folder.rs"]
pub mod folder;
#[path = "../../model/tests/support/folders.rs"]
pub mod folders;
#[path = "../../model/tests/support/image_prompts.rs"]
pub mod image_prompts;
pub mod larger;
pub mod launch;
#[path = "../../model/tests/support/near.rs"]
pub mod near;
#[path = "../../model/tests/support/paged.rs"]
pub mod paged;
#[path = "../../model/tests/support/reproducible.rs"]
pub mod reproducible;
#[path = "../../model/tests/support/returning.rs"]
pub mod returning;
pub mod several;
#[path = "../../model/tests/support/side_by_side.rs"]
pub mod side_by_side;
pub mod simulator;
#[path = "../../model/tests/support/solo_session.rs"]
pub mod solo_session;
#[path = "../../model/tests/support/story.rs"]
pub mod story;
#[path = "../../model/tests/support/submitted_request.rs"]
pub mod submitted_request;
