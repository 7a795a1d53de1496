//! Calls: arguments, macros, and the functions that are there.

use std::cell::RefCell;
use std::rc::Rc;

use super::ast;
use super::run::Run;
use super::value::{Function, Value};
use super::{Fault, Kind, methods, ops, text, wrong};
use crate::chat::clock;

/// Arguments of a call.
#[derive(Debug, Default)]
pub struct Arguments {
    pub positional: Vec<Value>,
    pub named: Vec<(String, Value)>,
}

impl Arguments {
    /// The argument at a place or of a name.
    pub fn get(&self, at: usize, name: &str) -> Option<&Value> {
        self.positional.get(at).or_else(|| self.named.iter().find(|(n, _)| n == name).map(|(_, value)| value))
    }

    /// Refuses names that are not among the given.
    pub fn only(&self, what: &str, names: &[&str]) -> Result<(), Fault> {
        match self.named.iter().find(|(name, _)| !names.contains(&name.as_str())) {
            Some((name, _)) => wrong(format!("{what} takes no argument {name:.40}")),
            None => Ok(()),
        }
    }

    /// A number from an argument; `default` where there is none.
    pub fn number(&self, at: usize, name: &str, default: usize) -> Result<usize, Fault> {
        match self.get(at, name) {
            None | Some(Value::None | Value::Undefined) => Ok(default),
            Some(Value::Int(n)) => usize::try_from(*n).or_else(|_| wrong(format!("{name}: {n} is out of range"))),
            Some(Value::Bool(b)) => Ok(usize::from(*b)),
            Some(other) => wrong(format!("{name} is {}, not a number", other.kind())),
        }
    }

    pub fn flag(&self, at: usize, name: &str, default: bool) -> bool {
        self.get(at, name).map_or(default, Value::is_true)
    }
}

impl Run {
    pub fn arguments(&mut self, code: &ast::Arguments) -> Result<Arguments, Fault> {
        let mut all = Arguments::default();
        for expr in &code.positional {
            all.positional.push(self.eval(expr)?);
        }
        for (name, expr) in &code.named {
            all.named.push((name.clone(), self.eval(expr)?));
        }
        if let Some(expr) = &code.spread {
            let list = self.eval(expr)?;
            all.positional.extend(ops::items(&list, &self.meter)?);
        }
        if let Some(expr) = &code.spread_named {
            let Value::Map(map) = self.eval(expr)? else { return wrong("'**' takes an object") };
            for (key, value) in &map.entries {
                let Some(name) = key.as_text() else { return wrong("a name of an argument is no text") };
                self.meter.bytes(name.len())?;
                all.named.push((name.to_owned(), value.clone()));
            }
        }
        Ok(all)
    }

    pub fn call(&mut self, function: &Value, arguments: Arguments) -> Result<Value, Fault> {
        match function {
            Value::Macro(code) => self.call_macro(code, 0, arguments),
            Value::Caller(code, scope) => match self.place_of(*scope) {
                Some(at) => self.call_macro(code, at, arguments),
                None => wrong("caller() outlives its call"),
            },
            Value::Loop(state) => match arguments.positional.as_slice() {
                [list] => self.recurse(state, list),
                _ => wrong("loop() takes one list"),
            },
            Value::Method(method) => methods::call(self, &method.0, &method.1, arguments),
            Value::Function(function) => self.call_function(*function, arguments),
            Value::Undefined => wrong("what is called here is undefined"),
            other => wrong(format!("{} cannot be called", other.kind())),
        }
    }

    /// Runs a macro in a scope of its own within the scope at a place; what it writes.
    fn call_macro(&mut self, code: &ast::Macro, within: usize, arguments: Arguments) -> Result<Value, Fault> {
        self.push_frame(Some(within));
        let result = self.deeper(|run| {
            let mut positional = arguments.positional.into_iter();
            let mut named = arguments.named;
            for (name, default) in &code.parameters {
                let given = named.iter().position(|(n, _)| n == name).map(|at| named.swap_remove(at).1);
                let value = match (positional.next(), given) {
                    (Some(_), Some(_)) => return wrong(format!("{}: {name:.40} is given twice", code.name)),
                    (Some(value), None) | (None, Some(value)) => value,
                    (None, None) => match default {
                        Some(expr) => run.eval(expr)?,
                        None => Value::Undefined,
                    },
                };
                run.store(name, value);
            }
            if let Some(at) = named.iter().position(|(name, _)| name == "caller") {
                let caller = named.swap_remove(at).1;
                run.store("caller", caller);
            }
            let rest = Value::sequence(positional.collect(), true, &run.meter)?;
            run.store("varargs", rest);
            let named = named.into_iter().map(|(name, value)| Ok((Value::text(&name, &run.meter)?, value)));
            let named = Value::map(named.collect::<Result<_, Fault>>()?, &run.meter)?;
            run.store("kwargs", named);
            run.captured(&code.body)
        });
        self.pop_frame();
        result
    }

    fn call_function(&mut self, function: Function, arguments: Arguments) -> Result<Value, Fault> {
        match function {
            Function::Range => {
                let mut bounds = Vec::new();
                for value in &arguments.positional {
                    match value {
                        Value::Int(n) => bounds.push(*n),
                        other => return wrong(format!("range() takes whole numbers, not {}", other.kind())),
                    }
                }
                let (from, to, step) = match *bounds.as_slice() {
                    [to] => (0, to, 1),
                    [from, to] => (from, to, 1),
                    [from, to, step] if step != 0 => (from, to, step),
                    _ => return wrong("range() takes an end, a begin and an end, or both and a step that is not 0"),
                };
                let span = if step > 0 { to.checked_sub(from) } else { from.checked_sub(to) };
                let count = span.unwrap_or(i128::MAX).max(0) as u128;
                let count = count.div_ceil(step.unsigned_abs());
                // As many as jinja2's sandbox allows.
                let Some(count) = usize::try_from(count).ok().filter(|&n| n <= 100_000) else {
                    return super::limit("range() has more than 100000 numbers");
                };
                Value::room_for(count, &self.meter)?;
                Value::list((0..count as i128).map(|i| Value::Int(from + i * step)).collect(), &self.meter)
            }
            Function::Namespace | Function::Dict => {
                let mut entries = Vec::new();
                if let Some(first) = arguments.positional.first() {
                    let Value::Map(map) = first else { return wrong("an object is expected here") };
                    self.meter.work(map.entries.len())?;
                    entries.extend(map.entries.iter().cloned());
                }
                for (name, value) in arguments.named {
                    entries.push((Value::text(&name, &self.meter)?, value));
                }
                if function == Function::Dict {
                    return Value::map(entries, &self.meter);
                }
                let mut all = std::collections::HashMap::new();
                for (key, value) in entries {
                    if value.inside().namespace {
                        return wrong("a namespace cannot be put into a namespace");
                    }
                    let Some(name) = key.as_text() else { return wrong("a name of an attribute is no text") };
                    all.insert(name.to_owned(), value);
                }
                Ok(Value::Namespace(Rc::new(RefCell::new(all))))
            }
            Function::Raise => {
                let words = arguments.positional.first().unwrap_or(&Value::Undefined);
                let words = text::to_string(words, &self.meter)?;
                Err(Fault { line: 0, kind: Kind::Raised(words) })
            }
            Function::Now => match arguments.positional.first().and_then(Value::as_text) {
                Some(format) if format.len() <= 1000 => match clock::strftime_now(format) {
                    Ok(now) => Value::text(&now, &self.meter),
                    Err(problem) => wrong(problem),
                },
                _ => wrong("strftime_now takes a format of at most 1000 letters"),
            },
        }
    }
}
