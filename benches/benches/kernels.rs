//! `cargo bench -p kjit-benches --bench kernels`: see `kjit_benches::kernels`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kjit_benches::main(kjit_benches::kernels::run)
}
