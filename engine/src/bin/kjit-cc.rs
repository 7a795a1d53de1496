//! The process that kjit runs compilers in: whatever a compiler does to it, the program goes on.

fn main() {
    std::process::exit(kjit_engine::kjit_cc());
}
