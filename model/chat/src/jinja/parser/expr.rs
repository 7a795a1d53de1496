//! Parses expressions.

use super::{NO_NAMES, Parser};
use crate::jinja::ast::{Arguments, Comparison, Expr, Operator, Step};
use crate::jinja::fault::Fault;
use crate::jinja::lexer::Token;

impl Parser {
    /// An expression, or a tuple of several expressions with commas.
    pub(super) fn tuple(&mut self) -> Result<Expr, Fault> {
        self.tuple_of(Self::expr)
    }

    pub(super) fn tuple_of(
        &mut self,
        parse: fn(&mut Self) -> Result<Expr, Fault>,
    ) -> Result<Expr, Fault> {
        let first = parse(self)?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.take_sign(",") {
            if matches!(self.peek(), Some(Token::CloseBlock | Token::Close)) {
                break;
            }
            all.push(parse(self)?);
        }
        Ok(Expr::Tuple(all))
    }

    pub(super) fn expr(&mut self) -> Result<Expr, Fault> {
        self.nested(|p| {
            let then = p.or()?;
            if !p.take_name("if") {
                return Ok(then);
            }
            let condition = p.or()?;
            let other = if p.take_name("else") { Some(p.expr()?) } else { None };
            let mut all = vec![(condition, other)];
            while p.take_name("if") {
                let condition = p.or()?;
                all.push((condition, if p.take_name("else") { Some(p.expr()?) } else { None }));
            }
            Ok(Expr::IfElse(Box::new(then), all))
        })
    }

    pub(super) fn or(&mut self) -> Result<Expr, Fault> {
        let first = self.and()?;
        if !self.is_name("or") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.take_name("or") {
            all.push(self.and()?);
        }
        Ok(Expr::Or(all))
    }

    pub(super) fn and(&mut self) -> Result<Expr, Fault> {
        let first = self.not()?;
        if !self.is_name("and") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.take_name("and") {
            all.push(self.not()?);
        }
        Ok(Expr::And(all))
    }

    pub(super) fn not(&mut self) -> Result<Expr, Fault> {
        let mut times = 0usize;
        while self.take_name("not") {
            times += 1;
        }
        let inner = self.compare()?;
        Ok(match times {
            0 => inner,
            _ if times % 2 == 1 => Expr::Not(Box::new(inner)),
            _ => Expr::Not(Box::new(Expr::Not(Box::new(inner)))),
        })
    }

    pub(super) fn compare(&mut self) -> Result<Expr, Fault> {
        let first = self.chain(0)?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.peek() {
                Some(Token::Sign("==")) => Comparison::Eq,
                Some(Token::Sign("!=")) => Comparison::Ne,
                Some(Token::Sign("<")) => Comparison::Lt,
                Some(Token::Sign("<=")) => Comparison::Le,
                Some(Token::Sign(">")) => Comparison::Gt,
                Some(Token::Sign(">=")) => Comparison::Ge,
                Some(Token::Name(name)) if name == "in" => Comparison::In,
                Some(Token::Name(name)) if name == "not" => {
                    self.advance();
                    Comparison::NotIn
                }
                _ => break,
            };
            match comparison {
                Comparison::NotIn => self.expect_name("in")?,
                _ => drop(self.advance()),
            }
            rest.push((comparison, self.chain(0)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    /// Operators of one precedence: `+ -`, then `~`, then `* / // %`, then `**`.
    pub(super) fn chain(&mut self, rank: usize) -> Result<Expr, Fault> {
        const RANKS: [&[(&str, Operator)]; 4] = [
            &[("+", Operator::Add), ("-", Operator::Sub)],
            &[("~", Operator::Join)],
            &[
                ("*", Operator::Mul),
                ("/", Operator::Div),
                ("//", Operator::FloorDiv),
                ("%", Operator::Rem),
            ],
            &[("**", Operator::Pow)],
        ];
        let Some(signs) = RANKS.get(rank) else { return self.unary() };
        let first = self.chain(rank + 1)?;
        let mut rest = Vec::new();
        loop {
            let found = match self.peek() {
                Some(Token::Sign(sign)) => signs.iter().find(|(s, _)| s == sign).map(|(_, op)| *op),
                _ => None,
            };
            let Some(operator) = found else { break };
            self.advance();
            rest.push((operator, self.chain(rank + 1)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Chain(Box::new(first), rest) })
    }

    pub(super) fn unary(&mut self) -> Result<Expr, Fault> {
        let (mut minus, mut signs) = (0usize, 0usize);
        loop {
            match self.peek() {
                Some(Token::Sign("-")) => minus += 1,
                Some(Token::Sign("+")) => {}
                _ => break,
            }
            signs += 1;
            self.advance();
        }
        let value = self.primary()?;
        let mut steps = Vec::new();
        self.postfix(&mut steps)?;
        let value = with_steps(value, steps);
        // A sign converts the value to a number, even if two signs cancel out.
        let value = if signs > 0 { Expr::Negative(Box::new(value), minus % 2 == 0) } else { value };
        // Filters and tests apply to the value with its sign.
        let mut steps = Vec::new();
        loop {
            if self.take_sign("|") {
                steps.push(self.filter()?);
            } else if self.take_name("is") {
                steps.push(self.test()?);
            } else if !steps.is_empty() && self.is_sign("(") {
                steps.push(Step::Call(self.arguments()?));
            } else {
                return Ok(with_steps(value, steps));
            }
        }
    }

    pub(super) fn postfix(&mut self, steps: &mut Vec<Step>) -> Result<(), Fault> {
        loop {
            if self.take_sign(".") {
                match self.advance() {
                    Some(Token::Name(name)) => steps.push(Step::Attribute(name)),
                    Some(Token::Int(at)) => steps.push(Step::Item(Expr::Int(at))),
                    _ => return self.fail("expected a name after '.'"),
                }
            } else if self.take_sign("[") {
                let step = self.nested(Self::subscript)?;
                steps.push(step);
            } else if self.is_sign("(") {
                steps.push(Step::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    pub(super) fn subscript(&mut self) -> Result<Step, Fault> {
        let mut parts = [None, None, None];
        let mut colons = 0;
        loop {
            if self.take_sign("]") {
                break;
            }
            if self.take_sign(":") {
                colons += 1;
                if colons > 2 {
                    return self.fail("a slice has at most three parts");
                }
                continue;
            }
            match parts.get_mut(colons) {
                Some(part @ None) => *part = Some(Box::new(self.tuple()?)),
                _ => return self.unexpected("']'"),
            }
        }
        match (colons, parts) {
            (0, [Some(item), ..]) => Ok(Step::Item(*item)),
            (0, _) => self.fail("the index between '[' and ']' is missing"),
            (_, parts) => Ok(Step::Slice(parts)),
        }
    }

    /// A filter's name and arguments, after `|`.
    pub(super) fn filter(&mut self) -> Result<Step, Fault> {
        let name = self.name()?;
        let arguments = if self.is_sign("(") { self.arguments()? } else { Arguments::default() };
        Ok(Step::Filter(name, arguments))
    }

    pub(super) fn test(&mut self) -> Result<Step, Fault> {
        let fails = self.take_name("not");
        let name = match self.advance() {
            Some(Token::Name(name)) => name,
            _ => return self.fail("expected the name of a test after 'is'"),
        };
        let has_operand = match self.peek() {
            Some(Token::Name(name)) => !["else", "or", "and", "is", "if", "in", "not", "recursive"]
                .contains(&name.as_str()),
            Some(Token::Text(_) | Token::Int(_) | Token::Float(_) | Token::Sign("[" | "{")) => true,
            _ => false,
        };
        let arguments = if self.is_sign("(") {
            self.arguments()?
        } else if has_operand {
            let operand = self.primary()?;
            let mut steps = Vec::new();
            self.postfix(&mut steps)?;
            Arguments { positional: vec![with_steps(operand, steps)], ..Arguments::default() }
        } else {
            Arguments::default()
        };
        Ok(Step::Test(name, arguments, fails))
    }

    pub(super) fn arguments(&mut self) -> Result<Arguments, Fault> {
        self.expect_sign("(")?;
        let mut all = Arguments::default();
        let mut first = true;
        while !self.take_sign(")") {
            if !first {
                self.expect_sign(",")?;
                if self.take_sign(")") {
                    break;
                }
            }
            first = false;
            if self.take_sign("**") {
                all.spread_named = Some(Box::new(self.expr()?));
            } else if self.take_sign("*") {
                all.spread = Some(Box::new(self.expr()?));
            } else {
                match self.expr()? {
                    Expr::Name(name) if self.take_sign("=") => {
                        let value = self.expr()?;
                        all.named.push((name, value));
                    }
                    value if all.named.is_empty() => all.positional.push(value),
                    _ => {
                        return self.fail("a positional argument follows a named argument");
                    }
                }
            }
        }
        Ok(all)
    }

    pub(super) fn primary(&mut self) -> Result<Expr, Fault> {
        let token = match self.peek() {
            Some(
                Token::Name(_)
                | Token::Text(_)
                | Token::Int(_)
                | Token::Float(_)
                | Token::Sign("(" | "[" | "{"),
            ) => self.advance(),
            _ => return self.unexpected("a value"),
        };
        Ok(match token {
            Some(Token::Name(name)) => match name.as_str() {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ if NO_NAMES.contains(&name.as_str()) => {
                    return self.fail(format!("expected a value, found '{name}'"));
                }
                _ => {
                    self.uses.caller |= name == "caller";
                    self.uses.varargs |= name == "varargs";
                    self.uses.kwargs |= name == "kwargs";
                    Expr::Name(name)
                }
            },
            Some(Token::Text(mut text)) => {
                while let Some((_, Token::Text(more))) =
                    self.tokens.next_if(|(_, t)| matches!(t, Token::Text(_)))
                {
                    text.push_str(&more);
                }
                Expr::Text(text)
            }
            Some(Token::Int(number)) => Expr::Int(number),
            Some(Token::Float(number)) => Expr::Float(number),
            Some(Token::Sign("(")) => self.brackets()?,
            Some(Token::Sign("[")) => {
                let mut all = Vec::new();
                while !self.take_sign("]") {
                    if !all.is_empty() {
                        self.expect_sign(",")?;
                        if self.take_sign("]") {
                            break;
                        }
                    }
                    all.push(self.expr()?);
                }
                Expr::List(all)
            }
            _ => {
                let mut all = Vec::new();
                while !self.take_sign("}") {
                    if !all.is_empty() {
                        self.expect_sign(",")?;
                        if self.take_sign("}") {
                            break;
                        }
                    }
                    let key = self.expr()?;
                    self.expect_sign(":")?;
                    all.push((key, self.expr()?));
                }
                Expr::Dict(all)
            }
        })
    }

    /// A value in brackets or a tuple, after the opening bracket.
    pub(super) fn brackets(&mut self) -> Result<Expr, Fault> {
        let mut all = Vec::new();
        let mut commas = false;
        while !self.take_sign(")") {
            if !all.is_empty() {
                self.expect_sign(",")?;
                commas = true;
                if self.take_sign(")") {
                    break;
                }
            }
            all.push(self.expr()?);
        }
        match (commas, all.pop()) {
            (false, Some(only)) => Ok(only),
            (true, Some(last)) => {
                all.push(last);
                Ok(Expr::Tuple(all))
            }
            (_, None) => Ok(Expr::Tuple(Vec::new())),
        }
    }
}

fn with_steps(value: Expr, steps: Vec<Step>) -> Expr {
    if steps.is_empty() { value } else { Expr::Postfix(Box::new(value), steps) }
}
