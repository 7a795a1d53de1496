//! Parses tokens into statements. Nesting is limited; sequences are lists.

mod expr;

use std::sync::Arc;

use super::ast::{Body, Expr, For, Macro, Node, Stmt, Target, Uses};
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
}
