//! Atomic operations on memory.

/// Computes the new value from the old value in memory and the data of the lane. For a compare and
/// swap, the low part of the data is the new value, the high part the expected value.
pub type AtomicUpdate = fn(u64, u128) -> u64;

/// The operation of the atomic instruction `verb`.
pub fn atomic(verb: &str) -> Option<AtomicUpdate> {
    Some(match verb {
        "add" => |a, b| a.wrapping_add(b as u64),
        "sub" => |a, b| a.wrapping_sub(b as u64),
        "and" => |a, b| a & b as u64,
        "or" => |a, b| a | b as u64,
        "xor" => |a, b| a ^ b as u64,
        "swap" => |_, b| b as u64,
        "umax" | "max" => |a, b| a.max(b as u64),
        "umin" | "min" => |a, b| a.min(b as u64),
        "smax" | "max_i32" => |a, b| (a as i32).max(b as i32) as u32 as u64,
        "smin" | "min_i32" => |a, b| (a as i32).min(b as i32) as u32 as u64,
        "add_f32" => {
            |a, b| u64::from((f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits())
        }
        "add_f64" => |a, b| (f64::from_bits(a) + f64::from_bits(b as u64)).to_bits(),
        _ => return None,
    })
}

/// A compare and swap of `size` bytes.
pub(super) fn compare_and_swap(size: usize) -> AtomicUpdate {
    match size {
        4 => |a, b| if a == u64::from((b >> 32) as u32) { u64::from(b as u32) } else { a },
        _ => |a, b| if a == (b >> 64) as u64 { b as u64 } else { a },
    }
}
