//! The numbers of a range.

use super::fault::{Fault, limit};
use super::meter::Meter;
use super::value::{ListKind, Value};
use std::rc::Rc;

/// Maximum length of a range, as in jinja2's sandbox.
pub(super) const MAX_RANGE: usize = 100_000;

/// The numbers of a range.
pub fn range(bounds: [i128; 3], meter: &Rc<Meter>) -> Result<Value, Fault> {
    let [from, to, step] = bounds;
    let span = if step > 0 { to.checked_sub(from) } else { from.checked_sub(to) };
    let count = (span.unwrap_or(i128::MAX).max(0) as u128).div_ceil(step.unsigned_abs().max(1));
    let Some(count) = usize::try_from(count).ok().filter(|&n| n <= MAX_RANGE) else {
        return limit(format!("range() has more than {MAX_RANGE} numbers"));
    };
    Value::check_length(count, meter)?;
    let all = (0..count as i128).map(|i| Value::Int(from + i * step)).collect();
    Value::sequence(all, ListKind::Range(bounds), meter)
}
