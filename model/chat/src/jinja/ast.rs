//! The syntax tree of a template. Chains of operators are lists, so the depth of the tree is the
//! depth of brackets and blocks.

use std::sync::Arc;

/// A statement and its line.
#[derive(Debug)]
pub struct Node {
    pub line: usize,
    pub stmt: Stmt,
}

pub type Body = Vec<Node>;

#[derive(Debug)]
pub enum Stmt {
    Text(String),
    Emit(Expr),
    /// The branches in order, each with its condition, and the else branch.
    If(Vec<(Expr, Body)>, Body),
    For(Arc<For>),
    Set(Target, Expr),
    SetBlock(Target, Vec<Step>, Body),
    Macro(Arc<Macro>),
    /// A call whose block is passed as the macro `caller`.
    Call(Expr, Arc<Macro>),
    Filter(Vec<Step>, Body),
    With(Vec<(Target, Expr)>, Body),
    /// A body without its own scope (`block`, `generation`).
    Plain(Body),
    Do(Expr),
    Break,
    Continue,
}

#[derive(Debug)]
pub struct For {
    pub target: Target,
    pub list: Expr,
    pub only_if: Option<Expr>,
    pub body: Body,
    pub otherwise: Body,
    pub recursive: bool,
}

#[derive(Debug)]
pub struct Macro {
    pub name: String,
    pub parameters: Vec<(String, Option<Expr>)>,
    pub body: Body,
    pub uses: Uses,
}

/// The implicit names that the body of a macro reads. Without them the macro accepts only its
/// parameters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Uses {
    pub caller: bool,
    pub varargs: bool,
    pub kwargs: bool,
}

/// The target of an assignment.
#[derive(Debug)]
pub enum Target {
    Name(String),
    /// An attribute of a namespace.
    Attribute(String, String),
    /// Several targets that are unpacked.
    Several(Vec<Target>),
}

#[derive(Debug)]
pub enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    Name(String),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Or(Vec<Expr>),
    And(Vec<Expr>),
    Not(Box<Expr>),
    /// Negation; applied twice if `true`.
    Negative(Box<Expr>, bool),
    /// Left-associative operators of one precedence.
    Chain(Box<Expr>, Vec<(Operator, Expr)>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// `this if condition else that`; each further pair takes the previous result as `this`.
    IfElse(Box<Expr>, Vec<(Expr, Option<Expr>)>),
    Postfix(Box<Expr>, Vec<Step>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    Add,
    Sub,
    Join,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// A postfix operation on a value.
#[derive(Debug)]
pub enum Step {
    Attribute(String),
    Item(Expr),
    Slice([Option<Box<Expr>>; 3]),
    Call(Arguments),
    Filter(String, Arguments),
    /// A test, and whether it is negated.
    Test(String, Arguments, bool),
}

#[derive(Debug, Default)]
pub struct Arguments {
    pub positional: Vec<Expr>,
    pub named: Vec<(String, Expr)>,
    /// The arguments `*list` and `**dict`.
    pub spread: Option<Box<Expr>>,
    pub spread_named: Option<Box<Expr>>,
}
