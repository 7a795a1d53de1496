//! What the tests that cross crates share: the simulated AMD device (`hipsim/`, see its README),
//! and what they share with the tests of `model`.

/// Whether a test is to do all, not a part: `KJIT_TEST_ALL` is a list of such names, separated by
/// commas.
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
