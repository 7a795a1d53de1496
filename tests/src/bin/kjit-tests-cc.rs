//! The process that these tests run compilers in: `kjit-cc`, built with this crate so that cargo
//! can say where it is.

fn main() {
    std::process::exit(kjit_engine::kjit_cc());
}
