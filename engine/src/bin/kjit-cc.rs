//! The compiler process of kjit: a compiler that crashes ends only this process.

fn main() {
    std::process::exit(kjit_engine::kjit_cc());
}
