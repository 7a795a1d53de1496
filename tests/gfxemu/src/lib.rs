//! An emulator of AMD machine code for tests: it runs code objects as LLVM disassembles them, and
//! is stricter than the hardware.
//!
//! - Registers and LDS start undefined, bit by bit. An address, a branch, EXEC, a stored value, a
//!   lane number or a matrix that depends on an undefined bit is a fault with its place.
//! - What a load brings is there only after a wait that covers it; using the register before, even
//!   to overwrite it, is a fault.
//! - A store is seen by others only after a wait, a write-back where the family has one, and their
//!   invalidation of caches; and overwrites what others have read only when they surely have.
//! - Waves that touch the same byte of LDS without a barrier between, or without having waited
//!   before it, are at fault.
//! - What the hardware does not wait for by itself, and the compiler must: a missing `s_nop` or
//!   wait is a fault.
//! - Memory ends where a buffer ends. Blocks and waves take turns in an order that a seed chooses.
//!
//! An instruction that it does not know is an error that names it. See README.md for what it does
//! not show.

// Bits are shifted out of products everywhere here; and a comparison that is not so is not the
// opposite one, with NaN.
#![allow(clippy::precedence, clippy::neg_cmp_op_on_partial_ord)]

pub mod bundle;
pub mod exchange;
pub mod facts;
pub mod float;
pub mod global;
pub mod hazard;
pub mod inst;
pub mod lanes;
pub mod lds;
pub mod llvm;
pub mod local;
pub mod machine;
pub mod matrix;
pub mod memory;
pub mod object;
pub mod operand;
pub mod ops;
pub mod order;
pub mod paths;
pub mod region;
pub mod scalar;
pub mod target;
pub mod text;
pub mod vector;
pub mod wave;
mod windows;
