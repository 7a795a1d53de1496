//! Helpers of the tests that cross crates: the simulated AMD device (`hipsim/`, see its README) and
//! the modules shared with the tests of `model`.

/// Whether a test runs all its cases. `KJIT_TEST_ALL` is a comma-separated list of names.
pub fn all(name: &str) -> bool {
    std::env::var("KJIT_TEST_ALL").is_ok_and(|all| all.split(',').any(|one| one == name))
}

#[path = "../../model/tests/support/asked.rs"]
pub mod asked;
pub mod emulated;
#[path = "../../model/tests/support/files.rs"]
pub mod files;
#[path = "../../model/gguf/tests/it/support/folder.rs"]
pub mod folder;
#[path = "../../model/tests/support/folders.rs"]
pub mod folders;
pub mod larger;
pub mod launch;
#[path = "../../model/tests/support/near.rs"]
pub mod near;
#[path = "../../model/tests/support/one.rs"]
pub mod one;
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
#[path = "../../model/tests/support/story.rs"]
pub mod story;
