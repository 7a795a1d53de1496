//! The compiler process of these tests: `kjit-cc`, built with this crate so that cargo can name its
//! path.

fn main() {
    std::process::exit(kjit_engine::kjit_cc());
}
