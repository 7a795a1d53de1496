//! Calls: arguments and macros.

use super::fault::{Fault, wrong};
use super::value::Value;

/// Arguments of a call.
#[derive(Debug, Default)]
pub struct Arguments {
    pub positional: Vec<Value>,
    pub named: Vec<(String, Value)>,
}

impl Arguments {
    /// Binds the arguments to these parameters. The first `needed` are required.
    pub fn bind<const N: usize>(
        &self,
        what: &str,
        parameters: [&str; N],
        needed: usize,
    ) -> Result<[Option<&Value>; N], Fault> {
        let mut bound = [None; N];
        if self.positional.len() > N {
            return wrong(format!(
                "{what:.40} takes at most {N} arguments, not {}",
                self.positional.len()
            ));
        }
        for (place, value) in bound.iter_mut().zip(&self.positional) {
            *place = Some(value);
        }
        for (name, value) in &self.named {
            let at = parameters.iter().position(|parameter| parameter == name);
            match at.and_then(|at| bound.get_mut(at)) {
                Some(place @ None) => *place = Some(value),
                Some(Some(_)) => return wrong(format!("{what:.40}: {name:.40} occurs twice")),
                None => return wrong(format!("{what:.40} has no parameter {name:.40}")),
            }
        }
        match parameters.iter().zip(&bound).take(needed).find(|(_, value)| value.is_none()) {
            Some((name, _)) => wrong(format!("{what:.40} needs {name}")),
            None => Ok(bound),
        }
    }
}

/// An integer argument.
pub fn whole(value: Option<&Value>, name: &str) -> Result<Option<i128>, Fault> {
    match value {
        None => Ok(None),
        Some(Value::Int(n)) => Ok(Some(*n)),
        Some(Value::Bool(b)) => Ok(Some(i128::from(*b))),
        Some(other) => wrong(format!("{name} is {}, not an integer", other.kind())),
    }
}

/// An integer argument that may be absent or none.
pub fn optional(value: Option<&Value>, name: &str) -> Result<Option<i128>, Fault> {
    whole(value.filter(|value| !matches!(value, Value::None)), name)
}

/// A size argument. Negative values count as 0, values above `usize` as its maximum.
pub fn size(value: Option<&Value>, name: &str, default: usize) -> Result<usize, Fault> {
    Ok(whole(value, name)?.map_or(default, |n| usize::try_from(n.max(0)).unwrap_or(usize::MAX)))
}

/// A string argument.
pub fn text<'v>(value: Option<&'v Value>, name: &str) -> Result<Option<&'v str>, Fault> {
    match value {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text)),
        Some(other) => wrong(format!("{name} is {}, not a string", other.kind())),
    }
}

/// The truth value of an argument, as in Python.
pub fn flag(value: Option<&Value>, default: bool) -> bool {
    value.map_or(default, Value::is_true)
}
