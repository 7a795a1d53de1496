//! The compiler process of kjit. If a compiler crashes, only this process ends.

fn main() {
    std::process::exit(kjit_engine::kjit_cc());
}
