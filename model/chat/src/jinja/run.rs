//! Runs a template.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Body, Expr, For, Node, Step, Stmt, Target};
use super::fault::{Fault, wrong};
use super::levels::Levels;
use super::meter::{Meter, MeteredString};
use super::value::Loop;
use super::value::{Data, Scope, Value};
use super::{filters, globals, methods, ops, tests, text};
use kjit_tokenizer::cancel::Cancel;

/// Runs a template with its variables and returns its output.
pub fn render(body: &Body, variables: Vec<(&str, Data)>, cancel: &Cancel) -> Result<String, Fault> {
    let meter = Meter::new(cancel);
    let mut run =
        Run { meter: meter.clone(), frames: Vec::new(), numbers: 0, levels: Levels::default() };
    run.push_frame(None);
    for (name, function) in globals::FUNCTIONS {
        run.store(name, Value::Function(function));
    }
    for (name, data) in variables {
        let value = data.into_value(&meter)?;
        if !matches!(value, Value::Undefined) {
            run.store(name, value);
        }
    }
    let mut out = MeteredString::output(&meter);
    run.body(body, &mut out)?;
    Ok(out.finish().0)
}

/// A scope.
struct Frame {
    variables: HashMap<String, Value>,
    /// The scope in which missing names are looked up.
    parent: Option<usize>,
    number: u64,
}

/// The state of a running template.
pub struct Run {
    pub meter: Rc<Meter>,
    frames: Vec<Frame>,
    numbers: u64,
    /// Nesting depth of evaluations.
    levels: Levels,
}

/// How a statement affects the loop around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    On,
    Break,
    Continue,
}

impl Run {
    pub fn push_frame(&mut self, parent: Option<usize>) {
        self.numbers += 1;
        self.frames.push(Frame { variables: HashMap::new(), parent, number: self.numbers });
    }

    pub fn pop_frame(&mut self) {
        self.frames.pop();
    }

    /// The current scope.
    pub fn here(&self) -> Scope {
        Scope {
            at: self.frames.len().saturating_sub(1),
            number: self.frames.last().map_or(0, |f| f.number),
        }
    }

    /// The index of a scope, if it still exists.
    pub fn place_of(&self, scope: Scope) -> Option<usize> {
        self.frames.get(scope.at).filter(|frame| frame.number == scope.number).map(|_| scope.at)
    }

    pub fn store(&mut self, name: &str, value: Value) {
        if let Some(frame) = self.frames.last_mut() {
            frame.variables.insert(name.to_owned(), value);
        }
    }

    fn lookup(&self, name: &str) -> Value {
        let mut at = self.frames.len().checked_sub(1);
        while let Some(frame) = at.and_then(|at| self.frames.get(at)) {
            if let Some(value) = frame.variables.get(name) {
                return value.clone();
            }
            at = frame.parent;
        }
        Value::Undefined
    }

    /// Runs `go` one level deeper.
    pub fn deeper<T>(
        &mut self,
        go: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.levels.enter()?;
        let result = go(self);
        self.levels.leave();
        result
    }

    pub fn body(&mut self, body: &Body, out: &mut MeteredString) -> Result<Flow, Fault> {
        self.deeper(|run| {
            for node in body {
                match run.node(node, out).map_err(|fault| fault.at(node.line))? {
                    Flow::On => {}
                    flow => return Ok(flow),
                }
            }
            Ok(Flow::On)
        })
    }

    /// The output of a body as a string.
    pub fn captured(&mut self, body: &Body) -> Result<Value, Fault> {
        let mut out = MeteredString::new(&self.meter);
        self.body(body, &mut out)?;
        Value::grown(out, &self.meter)
    }

    fn scoped<T>(&mut self, go: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        self.push_frame(Some(self.here().at));
        let result = go(self);
        self.pop_frame();
        result
    }

    fn node(&mut self, node: &Node, out: &mut MeteredString) -> Result<Flow, Fault> {
        self.meter.work(1)?;
        match &node.stmt {
            Stmt::Text(text) => out.push(text)?,
            Stmt::Emit(expr) => {
                let value = self.eval(expr)?;
                text::write(&value, out, &self.meter)?;
            }
            Stmt::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.eval(condition)?.is_true() {
                        return self.body(body, out);
                    }
                }
                return self.body(otherwise, out);
            }
            Stmt::For(code) => {
                let list = self.eval(&code.list)?;
                self.run_loop(code, &list, 0, out)?;
            }
            Stmt::Set(target, expr) => {
                let value = self.eval(expr)?;
                self.assign(target, value)?;
            }
            Stmt::SetBlock(target, steps, body) => {
                let mut value = self.scoped(|run| run.captured(body))?;
                value = self.steps(value, steps)?;
                self.assign(target, value)?;
            }
            Stmt::Macro(code) => self.store(&code.name, Value::Macro(code.clone(), self.here())),
            Stmt::Call(call, block) => {
                let caller = Value::Macro(block.clone(), self.here());
                let value = self.call_with(call, caller)?;
                text::write(&value, out, &self.meter)?;
            }
            Stmt::Filter(steps, body) => {
                let value = self.scoped(|run| run.captured(body))?;
                let value = self.steps(value, steps)?;
                text::write(&value, out, &self.meter)?;
            }
            Stmt::With(all, body) => {
                let values =
                    all.iter().map(|(_, expr)| self.eval(expr)).collect::<Result<Vec<_>, _>>()?;
                return self.scoped(|run| {
                    for ((target, _), value) in all.iter().zip(values) {
                        run.assign(target, value)?;
                    }
                    run.body(body, out)
                });
            }
            Stmt::Plain(body) => return self.body(body, out),
            Stmt::Do(expr) => drop(self.eval(expr)?),
            Stmt::Break => return Ok(Flow::Break),
            Stmt::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    fn assign(&mut self, target: &Target, value: Value) -> Result<(), Fault> {
        match target {
            Target::Name(name) => self.store(name, value),
            Target::Attribute(object, name) => {
                let Value::Namespace(namespace) = self.lookup(object) else {
                    return wrong(format!(
                        "{object} is not a namespace: only attributes of namespaces can be set"
                    ));
                };
                if value.inside().namespace {
                    return wrong("a namespace cannot contain a namespace");
                }
                self.meter.work(1)?;
                namespace.borrow_mut().insert(name.clone(), value);
            }
            Target::Several(targets) => {
                let items = super::items::items(&value, &self.meter)?;
                if items.len() != targets.len() {
                    return wrong(format!(
                        "{} values cannot be unpacked into {} targets",
                        items.len(),
                        targets.len()
                    ));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item)?;
                }
            }
        }
        Ok(())
    }

    fn run_loop(
        &mut self,
        code: &Arc<For>,
        list: &Value,
        depth: usize,
        out: &mut MeteredString,
    ) -> Result<(), Fault> {
        let as_list = |value: Value, run: &Run| match value {
            Value::List(list) => Ok(list),
            other => match Value::list(super::items::items(&other, &run.meter)?, &run.meter)? {
                Value::List(list) => Ok(list),
                _ => wrong("the loop has no list"),
            },
        };
        let mut list = as_list(list.clone(), self)?;
        if let Some(condition) = &code.only_if {
            let mut kept = Vec::new();
            for item in list.items.iter().cloned() {
                let keep = self.scoped(|run| {
                    run.assign(&code.target, item.clone())?;
                    Ok(run.eval(condition)?.is_true())
                })?;
                if keep {
                    kept.push(item);
                }
            }
            list = as_list(Value::list(kept, &self.meter)?, self)?;
        }
        if list.items.is_empty() {
            self.body(&code.otherwise, out)?;
            return Ok(());
        }
        let state = Rc::new(Loop {
            items: list,
            at: Cell::new(0),
            depth,
            last: RefCell::new(None),
            code: code.clone(),
        });
        for at in 0..state.items.items.len() {
            state.at.set(at);
            let Some(item) = state.items.items.get(at).cloned() else { break };
            let flow = self.scoped(|run| {
                run.meter.work(1)?;
                run.store("loop", Value::Loop(state.clone()));
                run.assign(&code.target, item)?;
                run.body(&code.body, out)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// `loop(list)`: runs the loop over another list, one level deeper.
    pub fn recurse(&mut self, state: &Loop, list: &Value) -> Result<Value, Fault> {
        if !state.code.recursive {
            return wrong("this loop is not recursive");
        }
        let mut out = MeteredString::new(&self.meter);
        self.deeper(|run| run.run_loop(&state.code, list, state.depth + 1, &mut out))?;
        Value::grown(out, &self.meter)
    }

    pub fn eval(&mut self, expr: &Expr) -> Result<Value, Fault> {
        self.meter.work(1)?;
        match expr {
            Expr::None => Ok(Value::None),
            Expr::Bool(b) => Ok(Value::Bool(*b)),
            Expr::Int(n) => Ok(Value::Int(*n)),
            Expr::Float(x) => Ok(Value::Float(*x)),
            Expr::Text(text) => Value::text(text, &self.meter),
            Expr::Name(name) => Ok(self.lookup(name)),
            _ => self.deeper(|run| run.compound(expr)),
        }
    }

    fn all(&mut self, exprs: &[Expr]) -> Result<Vec<Value>, Fault> {
        exprs.iter().map(|expr| self.eval(expr)).collect()
    }

    fn compound(&mut self, expr: &Expr) -> Result<Value, Fault> {
        match expr {
            Expr::List(items) => {
                let items = self.all(items)?;
                Value::list(items, &self.meter)
            }
            Expr::Tuple(items) => {
                let items = self.all(items)?;
                Value::tuple(items, &self.meter)
            }
            Expr::Dict(entries) => {
                let mut all = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    all.push((self.eval(key)?, self.eval(value)?));
                }
                Value::map(all, &self.meter)
            }
            Expr::Or(all) => self.first(all, true),
            Expr::And(all) => self.first(all, false),
            Expr::Not(inner) => Ok(Value::Bool(!self.eval(inner)?.is_true())),
            Expr::Negative(inner, twice) => {
                let value = self.eval(inner)?;
                let value = ops::negative(&value)?;
                if *twice { ops::negative(&value) } else { Ok(value) }
            }
            Expr::Chain(first, rest) => {
                let mut value = self.eval(first)?;
                for (operator, operand) in rest {
                    let operand = self.eval(operand)?;
                    value = ops::operate(*operator, &value, &operand, &self.meter)?;
                }
                Ok(value)
            }
            Expr::Compare(first, rest) => {
                let mut left = self.eval(first)?;
                for (comparison, operand) in rest {
                    let right = self.eval(operand)?;
                    if !ops::compare(*comparison, &left, &right, &self.meter)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::IfElse(then, conditions) => {
                for (condition, other) in conditions.iter().rev() {
                    if !self.eval(condition)?.is_true() {
                        return other
                            .as_ref()
                            .map_or(Ok(Value::Undefined), |other| self.eval(other));
                    }
                }
                self.eval(then)
            }
            Expr::Postfix(base, steps) => {
                let value = self.eval(base)?;
                // Only the error message needs this: it names the missing variable.
                if let (
                    Expr::Name(name),
                    Value::Undefined,
                    Some(Step::Attribute(_) | Step::Item(_) | Step::Call(_)),
                ) = (&**base, &value, steps.first())
                {
                    return wrong(format!("{name:.40} is undefined"));
                }
                self.steps(value, steps)
            }
            // The caller evaluates simple expressions.
            _ => self.eval(expr),
        }
    }

    /// The first value with this truth value, or the last value if no value has it.
    fn first(&mut self, all: &[Expr], wanted: bool) -> Result<Value, Fault> {
        let mut value = Value::Undefined;
        for expr in all {
            value = self.eval(expr)?;
            if value.is_true() == wanted {
                break;
            }
        }
        Ok(value)
    }

    /// Applies postfix operations from left to right.
    fn steps(&mut self, mut value: Value, steps: &[Step]) -> Result<Value, Fault> {
        let mut rest = steps.iter().peekable();
        while let Some(step) = rest.next() {
            self.meter.work(1)?;
            value = match step {
                Step::Attribute(name) => match rest.next_if(|next| matches!(next, Step::Call(_))) {
                    Some(Step::Call(arguments)) => {
                        let function = methods::attribute(&value, name, &self.meter)?;
                        let arguments = self.arguments(arguments)?;
                        match function {
                            Some(function) => self.call(&function, arguments)?,
                            None => return methods::unknown(&value, name),
                        }
                    }
                    _ => methods::attribute(&value, name, &self.meter)?.unwrap_or(Value::Undefined),
                },
                Step::Item(item) => {
                    let item = self.eval(item)?;
                    super::index::item(&value, &item, &self.meter)?
                }
                Step::Slice(parts) => {
                    let mut bounds = [Value::None, Value::None, Value::None];
                    for (bound, part) in bounds.iter_mut().zip(parts) {
                        if let Some(part) = part {
                            *bound = self.eval(part)?;
                        }
                    }
                    super::index::slice(&value, &bounds, &self.meter)?
                }
                Step::Call(arguments) => {
                    let arguments = self.arguments(arguments)?;
                    self.call(&value, arguments)?
                }
                Step::Filter(name, arguments) => {
                    let arguments = self.arguments(arguments)?;
                    filters::filter(name, &value, arguments, &self.meter, &mut self.levels)?
                }
                Step::Test(name, arguments, fails) => {
                    let arguments = self.arguments(arguments)?;
                    Value::Bool(tests::test(name, &value, &arguments, &self.meter)? != *fails)
                }
            };
        }
        Ok(value)
    }

    /// The call of a `call` block.
    fn call_with(&mut self, call: &Expr, caller: Value) -> Result<Value, Fault> {
        let Expr::Postfix(base, steps) = call else {
            return wrong("'call' needs a call of a macro");
        };
        let Some((Step::Call(arguments), before)) = steps.split_last() else {
            return wrong("'call' needs a call of a macro");
        };
        let function = self.eval(base)?;
        let function = self.steps(function, before)?;
        let mut arguments = self.arguments(arguments)?;
        arguments.named.push(("caller".to_owned(), caller));
        self.call(&function, arguments)
    }
}
