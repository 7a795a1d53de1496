//! `cargo bench -p kjit-benches --bench cache`: see `kjit_benches::cache`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kjit_benches::main(kjit_benches::cache::run)
}
