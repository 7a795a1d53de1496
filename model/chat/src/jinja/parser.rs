//! Parses tokens into statements. Nesting is limited; sequences are lists.

use std::sync::Arc;

use super::ast::{
    Arguments, Body, Comparison, Expr, For, Macro, Node, Operator, Step, Stmt, Target, Uses,
};
use super::fault::{Fault, Kind};
use super::lexer::{Lexed, Token};
use super::limits::MAX_NESTING;

/// The statements of a template.
pub fn parse(tokens: Vec<Lexed>) -> Result<Body, Fault> {
    let tokens = tokens.into_iter().peekable();
    let mut parser = Parser { tokens, line: 1, nesting: 0, loops: 0, uses: Uses::default() };
    let (body, end) = parser.body(&[])?;
    match end {
        None => Ok(body),
        Some(end) => parser.fail(format!("'{end}' without an opening tag")),
    }
}

struct Parser {
    tokens: std::iter::Peekable<std::vec::IntoIter<Lexed>>,
    line: usize,
    nesting: usize,
    /// Number of loops around the current statement.
    loops: usize,
    /// The implicit macro names that were read.
    uses: Uses,
}

const NO_NAMES: [&str; 12] =
    ["true", "True", "false", "False", "none", "None", "and", "or", "not", "if", "else", "in"];

impl Parser {
    fn fail<T>(&self, problem: impl Into<String>) -> Result<T, Fault> {
        Err(Fault { line: self.line, kind: Kind::Wrong(problem.into()) })
    }

    fn peek(&mut self) -> Option<&Token> {
        self.tokens.peek().map(|(_, token)| token)
    }

    fn advance(&mut self) -> Option<Token> {
        let (line, token) = self.tokens.next()?;
        self.line = line;
        Some(token)
    }

    fn is_sign(&mut self, sign: &str) -> bool {
        matches!(self.peek(), Some(Token::Sign(s)) if *s == sign)
    }

    fn is_name(&mut self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(n)) if n == name)
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        let is = self.is_sign(sign);
        is.then(|| self.advance());
        is
    }

    fn take_name(&mut self, name: &str) -> bool {
        let is = self.is_name(name);
        is.then(|| self.advance());
        is
    }

    fn unexpected<T>(&mut self, expected: &str) -> Result<T, Fault> {
        let found = match self.peek() {
            None => "the end".to_owned(),
            Some(Token::Data(_)) => "text".to_owned(),
            Some(Token::Open) => "'{{'".to_owned(),
            Some(Token::Close) => "'}}'".to_owned(),
            Some(Token::OpenBlock) => "'{%'".to_owned(),
            Some(Token::CloseBlock) => "'%}'".to_owned(),
            Some(Token::Name(name)) => format!("'{name:.40}'"),
            Some(Token::Text(text)) => format!("{text:.40?}"),
            Some(Token::Int(number)) => format!("'{number}'"),
            Some(Token::Float(number)) => format!("'{number}'"),
            Some(Token::Sign(sign)) => format!("'{sign}'"),
        };
        if let Some((line, _)) = self.tokens.peek() {
            self.line = *line;
        }
        self.fail(format!("expected {expected}, found {found}"))
    }

    fn expect_sign(&mut self, sign: &str) -> Result<(), Fault> {
        if self.take_sign(sign) { Ok(()) } else { self.unexpected(&format!("'{sign}'")) }
    }

    fn expect_name(&mut self, name: &str) -> Result<(), Fault> {
        if self.take_name(name) { Ok(()) } else { self.unexpected(&format!("'{name}'")) }
    }

    fn close_block(&mut self) -> Result<(), Fault> {
        match self.peek() {
            Some(Token::CloseBlock) => {
                self.advance();
                Ok(())
            }
            _ => self.unexpected("'%}'"),
        }
    }

    fn name(&mut self) -> Result<String, Fault> {
        match self.tokens.next_if(
            |(_, token)| matches!(token, Token::Name(n) if !NO_NAMES.contains(&n.as_str())),
        ) {
            Some((line, Token::Name(name))) => {
                self.line = line;
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        if self.nesting == MAX_NESTING {
            let problem = format!("brackets and blocks are nested more than {MAX_NESTING} deep");
            return Err(Fault { line: self.line, kind: Kind::Limit(problem) });
        }
        self.nesting += 1;
        let result = parse(self);
        self.nesting -= 1;
        result
    }

    /// Statements up to a block with one of the given names, or up to the end. The name of that
    /// block is consumed.
    fn body(&mut self, ends: &[&str]) -> Result<(Body, Option<String>), Fault> {
        let mut body = Vec::new();
        loop {
            let Some(token) = self.advance() else {
                return match ends.last() {
                    Some(end) => self.fail(format!("the template ends without '{end}'")),
                    None => Ok((body, None)),
                };
            };
            let line = self.line;
            match token {
                Token::Data(text) => body.push(Node { line, stmt: Stmt::Text(text) }),
                Token::Open => {
                    let expr = self.tuple()?;
                    match self.peek() {
                        Some(Token::Close) => self.advance(),
                        _ => return self.unexpected("'}}'"),
                    };
                    body.push(Node { line, stmt: Stmt::Emit(expr) });
                }
                _ => {
                    let name = match self.advance() {
                        Some(Token::Name(name)) => name,
                        _ => return self.fail("a tag must start with the name of a statement"),
                    };
                    if ends.contains(&name.as_str()) || (ends.is_empty() && name.starts_with("end"))
                    {
                        return Ok((body, Some(name)));
                    }
                    let stmt = self.nested(|p| p.statement(&name))?;
                    body.push(Node { line, stmt });
                }
            }
        }
    }

    /// A body and the rest of the tag that ends it.
    fn body_to(&mut self, end: &str) -> Result<Body, Fault> {
        self.close_block()?;
        let body = self.body(&[end])?.0;
        // `{% endblock name %}`
        if end == "endblock" && matches!(self.peek(), Some(Token::Name(_))) {
            self.advance();
        }
        self.close_block()?;
        Ok(body)
    }

    fn statement(&mut self, name: &str) -> Result<Stmt, Fault> {
        let stmt = match name {
            "if" => return self.branches(),
            "for" => return self.for_loop(),
            "set" => return self.set(),
            "macro" => {
                let name = self.name()?;
                self.expect_sign("(")?;
                let parameters = self.parameters()?;
                return Ok(Stmt::Macro(self.macro_to("endmacro", name, parameters)?));
            }
            "call" => {
                let parameters = if self.take_sign("(") { self.parameters()? } else { Vec::new() };
                let call = self.expr()?;
                return Ok(Stmt::Call(
                    call,
                    self.macro_to("endcall", "caller".to_owned(), parameters)?,
                ));
            }
            "filter" => {
                let mut steps = vec![self.filter()?];
                while self.take_sign("|") {
                    steps.push(self.filter()?);
                }
                return Ok(Stmt::Filter(steps, self.body_to("endfilter")?));
            }
            "with" => {
                let mut all = Vec::new();
                while !matches!(self.peek(), Some(Token::CloseBlock)) {
                    if !all.is_empty() {
                        self.expect_sign(",")?;
                    }
                    let target = self.target()?;
                    self.expect_sign("=")?;
                    all.push((target, self.expr()?));
                }
                return Ok(Stmt::With(all, self.body_to("endwith")?));
            }
            "block" => {
                self.name()?;
                let _ = self.take_name("scoped") || self.take_name("required");
                return Ok(Stmt::Plain(self.body_to("endblock")?));
            }
            // This block marks the text of the assistant for training. It has no effect in prompts.
            "generation" => return Ok(Stmt::Plain(self.body_to("endgeneration")?)),
            "autoescape" => {
                if !matches!(self.expr()?, Expr::Bool(false)) {
                    return self.fail("autoescape is not supported: a prompt is not HTML");
                }
                return Ok(Stmt::Plain(self.body_to("endautoescape")?));
            }
            "do" => Stmt::Do(self.expr()?),
            "break" | "continue" if self.loops == 0 => {
                return self.fail(format!("'{name}' outside of a loop"));
            }
            "break" => Stmt::Break,
            "continue" => Stmt::Continue,
            "include" | "import" | "from" | "extends" => {
                return self
                    .fail(format!("'{name}' is not supported: a file has only this template"));
            }
            _ => return self.fail(format!("unknown statement '{name:.40}'")),
        };
        self.close_block()?;
        Ok(stmt)
    }

    /// The body of a macro. Loops outside of the macro do not count inside it.
    fn macro_to(
        &mut self,
        end: &str,
        name: String,
        parameters: Vec<(String, Option<Expr>)>,
    ) -> Result<Arc<Macro>, Fault> {
        let (loops, around) = (std::mem::take(&mut self.loops), std::mem::take(&mut self.uses));
        let body = self.body_to(end)?;
        self.loops = loops;
        let uses = self.uses;
        self.uses = Uses {
            caller: around.caller || uses.caller,
            varargs: around.varargs || uses.varargs,
            kwargs: around.kwargs || uses.kwargs,
        };
        Ok(Arc::new(Macro { name, parameters, body, uses }))
    }

    fn branches(&mut self) -> Result<Stmt, Fault> {
        let mut branches = Vec::new();
        loop {
            let condition = self.tuple()?;
            self.close_block()?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            match end.as_deref() {
                Some("elif") => {}
                Some("else") => return Ok(Stmt::If(branches, self.body_to("endif")?)),
                _ => {
                    self.close_block()?;
                    return Ok(Stmt::If(branches, Vec::new()));
                }
            }
        }
    }

    fn for_loop(&mut self) -> Result<Stmt, Fault> {
        let target = self.target()?;
        self.expect_name("in")?;
        let list = self.tuple_of(Self::or)?;
        let only_if = if self.take_name("if") { Some(self.expr()?) } else { None };
        let recursive = self.take_name("recursive");
        self.close_block()?;
        self.loops += 1;
        let inner = self.body(&["else", "endfor"]);
        self.loops -= 1;
        let (body, end) = inner?;
        let otherwise = match end.as_deref() {
            Some("else") => self.body_to("endfor")?,
            _ => {
                self.close_block()?;
                Vec::new()
            }
        };
        Ok(Stmt::For(Arc::new(For { target, list, only_if, body, otherwise, recursive })))
    }

    fn set(&mut self) -> Result<Stmt, Fault> {
        let target = self.target()?;
        if self.take_sign("=") {
            let value = self.tuple()?;
            self.close_block()?;
            return Ok(Stmt::Set(target, value));
        }
        let mut steps = Vec::new();
        while self.take_sign("|") {
            steps.push(self.filter()?);
        }
        Ok(Stmt::SetBlock(target, steps, self.body_to("endset")?))
    }

    /// `a`, `a.b`, `a, b`, `(a, b), c`
    fn target(&mut self) -> Result<Target, Fault> {
        let first = self.one_target()?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.take_sign(",") {
            if self.is_sign("=") || self.is_sign(")") || self.is_name("in") {
                break;
            }
            all.push(self.one_target()?);
        }
        Ok(Target::Several(all))
    }

    fn one_target(&mut self) -> Result<Target, Fault> {
        if self.take_sign("(") {
            let inner = self.nested(Self::target)?;
            self.expect_sign(")")?;
            return Ok(inner);
        }
        let name = self.name()?;
        if self.take_sign(".") {
            return Ok(Target::Attribute(name, self.name()?));
        }
        Ok(Target::Name(name))
    }

    /// Parameters of a macro, after the opening bracket.
    fn parameters(&mut self) -> Result<Vec<(String, Option<Expr>)>, Fault> {
        let mut all = Vec::new();
        while !self.take_sign(")") {
            if !all.is_empty() {
                self.expect_sign(",")?;
                if self.take_sign(")") {
                    break;
                }
            }
            let name = self.name()?;
            let default = if self.take_sign("=") { Some(self.expr()?) } else { None };
            all.push((name, default));
        }
        Ok(all)
    }

    /// An expression, or a tuple of several expressions with commas.
    fn tuple(&mut self) -> Result<Expr, Fault> {
        self.tuple_of(Self::expr)
    }

    fn tuple_of(&mut self, parse: fn(&mut Self) -> Result<Expr, Fault>) -> Result<Expr, Fault> {
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

    fn expr(&mut self) -> Result<Expr, Fault> {
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

    fn or(&mut self) -> Result<Expr, Fault> {
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

    fn and(&mut self) -> Result<Expr, Fault> {
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

    fn not(&mut self) -> Result<Expr, Fault> {
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

    fn compare(&mut self) -> Result<Expr, Fault> {
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
    fn chain(&mut self, rank: usize) -> Result<Expr, Fault> {
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

    fn unary(&mut self) -> Result<Expr, Fault> {
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

    fn postfix(&mut self, steps: &mut Vec<Step>) -> Result<(), Fault> {
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

    fn subscript(&mut self) -> Result<Step, Fault> {
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
    fn filter(&mut self) -> Result<Step, Fault> {
        let name = self.name()?;
        let arguments = if self.is_sign("(") { self.arguments()? } else { Arguments::default() };
        Ok(Step::Filter(name, arguments))
    }

    fn test(&mut self) -> Result<Step, Fault> {
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

    fn arguments(&mut self) -> Result<Arguments, Fault> {
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

    fn primary(&mut self) -> Result<Expr, Fault> {
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
    fn brackets(&mut self) -> Result<Expr, Fault> {
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
