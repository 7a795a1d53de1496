//! `cargo bench -p kjit-benches --bench load`: see `kjit_benches::load`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kjit_benches::main(kjit_benches::load::run)
}
