//! The GPU sources, and beside each the Rust that specialises it; and the block formats, described once for host and GPU.
