//! `cargo bench -p kjit-benches --bench host`: see `kjit_benches::host`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kjit_benches::main(kjit_benches::host::run)
}
