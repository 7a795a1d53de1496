//! An emulator of AMD machine code for tests. It runs the instructions as LLVM disassembles them,
//! and is stricter than the hardware.
//!
//! - Registers and LDS start undefined, bit by bit. An address, a branch, EXEC, a stored value, a
//!   lane number or a matrix that depends on an undefined bit is a fault. The message contains the
//!   location.
//! - The result of a load exists only after a wait that covers it. Reading or overwriting the
//!   register before that is a fault.
//! - Other waves see a store only after a wait, a write-back if the family needs one, and an
//!   invalidation of their caches. A store may overwrite data only when all readers have received
//!   it.
//! - If two waves access the same byte of LDS without a barrier between them, or without a wait
//!   before the barrier, that is a fault.
//! - A missing `s_nop` or wait is a fault if the hardware does not handle the hazard.
//! - A buffer ends exactly at its last byte. A seed chooses the order of blocks and waves.
//!
//! An unknown instruction is an error that names it. README.md lists what the emulator does not
//! check.

// The crate cuts bits out of products everywhere, and with NaN a negated comparison differs from
// the opposite comparison.
#![allow(clippy::precedence, clippy::neg_cmp_op_on_partial_ord)]

pub mod atomic;
pub mod bundle;
pub mod exchange;
pub mod facts;
pub mod float;
pub mod generic;
pub mod gfx8;
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
pub mod random;
pub mod region;
pub mod scalar;
pub mod scratch;
pub mod span;
pub mod target;
pub mod text;
pub mod unsupported;
pub mod vector;
pub mod wave;
pub mod width;
pub mod windows;
