//! Helpers that the tests of this crate share.

#![allow(dead_code, reason = "each test program uses its part")]

pub mod adapters;
#[path = "../../gguf/tests/it/support/as_folder.rs"]
pub mod as_folder;
pub mod draws;
pub mod files;
#[path = "../../gguf/tests/it/support/folder.rs"]
pub mod folder;
pub mod folders;
pub mod image_prompts;
pub mod near;
#[path = "../../gguf/tests/it/support/opened.rs"]
pub mod opened;
pub mod oracle;
pub mod paged;
pub mod reproducible;
pub mod returning;
pub mod rounding;
pub mod shapes;
pub mod side_by_side;
pub mod simulated;
pub mod solo_session;
pub mod story;
pub mod submitted_request;
#[path = "../../gguf/tests/it/support/writer.rs"]
pub mod writer;
