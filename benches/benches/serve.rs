//! `cargo bench -p kjit-benches --bench serve`: see `kjit_benches::serve`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kjit_benches::main(kjit_benches::serve::run)
}
