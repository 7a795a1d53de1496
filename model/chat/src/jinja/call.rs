//! Calls of functions, methods and macros.

use super::ast;
use super::bind::Arguments;
use super::fault::{Fault, wrong};
use super::run::Run;
use super::value::Value;
use super::{globals, methods};

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
            all.positional.extend(super::items::items(&list, &self.meter)?);
        }
        if let Some(expr) = &code.spread_named {
            let Value::Map(map) = self.eval(expr)? else { return wrong("'**' needs an object") };
            for (key, value) in &map.entries {
                let Some(name) = key.as_text() else {
                    return wrong("the name of an argument is not a string");
                };
                self.meter.bytes(name.len())?;
                all.named.push((name.to_owned(), value.clone()));
            }
        }
        Ok(all)
    }

    pub fn call(&mut self, function: &Value, arguments: Arguments) -> Result<Value, Fault> {
        match function {
            Value::Macro(code, scope) => match self.place_of(*scope) {
                Some(at) => self.call_macro(code, at, arguments),
                None => wrong(format!(
                    "{:.40}() was called after the scope that defines it ended",
                    code.name
                )),
            },
            Value::Loop(state) => match arguments.positional.as_slice() {
                [list] => self.recurse(state, list),
                _ => wrong("loop() needs exactly one list"),
            },
            Value::Method(method) => methods::call(&method.0, &method.1, arguments, &self.meter),
            Value::Function(function) => globals::call(*function, arguments, &self.meter),
            Value::Joiner(joiner) => match joiner.1.replace(true) {
                true => Ok(joiner.0.clone()),
                false => Value::text("", &self.meter),
            },
            Value::Undefined => wrong("an undefined value cannot be called"),
            other => wrong(format!("{} cannot be called", other.kind())),
        }
    }

    /// Runs a macro in a new scope inside the scope at `within`. Returns its output.
    fn call_macro(
        &mut self,
        code: &ast::Macro,
        within: usize,
        arguments: Arguments,
    ) -> Result<Value, Fault> {
        self.push_frame(Some(within));
        let result = self.deeper(|run| {
            let mut positional = arguments.positional.into_iter();
            let mut named = arguments.named;
            for (name, default) in &code.parameters {
                let given =
                    named.iter().position(|(n, _)| n == name).map(|at| named.swap_remove(at).1);
                let value = match (positional.next(), given) {
                    (Some(_), Some(_)) => {
                        return wrong(format!("{}: {name:.40} occurs twice", code.name));
                    }
                    (Some(value), None) | (None, Some(value)) => value,
                    (None, None) => match default {
                        Some(expr) => run.eval(expr)?,
                        None => Value::Undefined,
                    },
                };
                run.store(name, value);
            }
            if code.uses.caller {
                let at = named.iter().position(|(name, _)| name == "caller");
                let caller = at.map_or(Value::Undefined, |at| named.swap_remove(at).1);
                run.store("caller", caller);
            }
            if !code.uses.varargs && positional.len() > 0 {
                let most = code.parameters.len();
                return wrong(format!("{:.40}() takes at most {most} arguments", code.name));
            }
            if let Some((name, _)) = named.first().filter(|_| !code.uses.kwargs) {
                return wrong(format!("{:.40}() has no parameter {name:.40}", code.name));
            }
            let rest = Value::tuple(positional.collect(), &run.meter)?;
            run.store("varargs", rest);
            let named =
                named.into_iter().map(|(name, value)| Ok((Value::text(&name, &run.meter)?, value)));
            let named = Value::map(named.collect::<Result<_, Fault>>()?, &run.meter)?;
            run.store("kwargs", named);
            run.captured(&code.body)
        });
        self.pop_frame();
        result
    }
}
