//! The values of templates. The meter of the run counts all their memory.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::ast;
use super::meter::{Meter, Metered};

use super::ast::For;
use super::fault::{Fault, limit, wrong};
use super::limits::MAX_DEPTH;

/// Bytes counted for each element of a list, and for each string or list itself.
const ELEMENT: usize = 32;
const BASE: usize = 64;

/// Maximum number of elements of a key, including those of nested tuples.
const MAX_KEY: usize = 256;

#[derive(Debug, Clone)]
pub enum Value {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text),
    List(Rc<Metered<List>>),
    Map(Rc<Metered<Map>>),
    /// The result of a filter that is lazy in Python: it can be iterated once and has no length.
    Generator(Rc<Generator>),
    Namespace(Rc<RefCell<HashMap<String, Value>>>),
    /// A macro or the block of a `call`, with its scope.
    Macro(Arc<ast::Macro>, Scope),
    Loop(Rc<Loop>),
    Function(Function),
    Cycler(Rc<Cycler>),
    /// The separator, and whether it was used before.
    Joiner(Rc<(Value, Cell<bool>)>),
    /// A method that has not been called yet.
    Method(Rc<(Value, String)>),
}

/// A string, and whether it is HTML, which `escape` leaves unchanged.
#[derive(Debug, Clone)]
pub struct Text {
    string: Rc<Metered<Box<str>>>,
    pub safe: bool,
}

impl Text {
    /// Whether both are the same string in memory.
    pub fn is(&self, other: &Text) -> bool {
        Rc::ptr_eq(&self.string, &other.string)
    }
}

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.string
    }
}

/// A list that can be iterated once.
#[derive(Debug)]
pub struct Generator {
    pub items: Rc<Metered<List>>,
    pub at: Cell<usize>,
}

impl Generator {
    pub fn next(&self) -> Option<Value> {
        let item = self.items.items.get(self.at.get()).cloned();
        self.at.set(self.at.get().saturating_add(usize::from(item.is_some())));
        item
    }
}

/// `cycler(…)`: the values and the next index.
#[derive(Debug)]
pub struct Cycler {
    pub items: Rc<Metered<List>>,
    pub at: Cell<usize>,
}

/// A scope by its index and a number that is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    pub at: usize,
    pub number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Range,
    Namespace,
    Dict,
    Raise,
    Now,
    Cycler,
    Joiner,
    Lipsum,
}

#[derive(Debug)]
pub struct List {
    pub items: Vec<Value>,
    pub kind: ListKind,
    pub inside: ContentFlags,
}

/// Python's type of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    List,
    Tuple,
    /// The tuple (`grouper`, `list`) of `groupby`.
    Group,
    Keys,
    Values,
    Items,
    /// Start, stop and step.
    Range([i128; 3]),
}

impl ListKind {
    pub fn is_tuple(self) -> bool {
        matches!(self, ListKind::Tuple | ListKind::Group)
    }

    /// Whether the sequence can be indexed. Views of objects cannot.
    pub fn is_indexed(self) -> bool {
        !matches!(self, ListKind::Keys | ListKind::Values | ListKind::Items)
    }
}

/// Properties of the content of a list or an object.
#[derive(Debug, Clone, Copy, Default)]
pub struct ContentFlags {
    depth: u16,
    /// Whether the content includes a namespace. A namespace cannot store such a value, so no value
    /// contains itself.
    pub namespace: bool,
}

/// An object with ordered keys.
#[derive(Debug)]
pub struct Map {
    pub entries: Vec<(Value, Value)>,
    /// Index by key.
    index_by_key: HashMap<Key, usize>,
    pub inside: ContentFlags,
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub enum Key {
    None,
    Int(i128),
    Float(u64),
    Text(Rc<str>),
    Tuple(Vec<Key>),
}

impl Key {
    /// The key of a value. An integer and a float of equal value have the same key.
    pub fn of(value: &Value) -> Result<Key, Fault> {
        Key::within(value, &mut { MAX_KEY })
    }

    /// A key with a limited number of elements. A shared element of a tuple is counted each time it
    /// occurs.
    fn within(value: &Value, left: &mut usize) -> Result<Key, Fault> {
        *left = match left.checked_sub(1) {
            Some(left) => left,
            None => return limit(format!("a key has more than {MAX_KEY} elements")),
        };
        Ok(match value {
            Value::None => Key::None,
            Value::Bool(b) => Key::Int(i128::from(*b)),
            Value::Int(n) => Key::Int(*n),
            Value::Float(x) if x.fract() == 0.0 && x.abs() < 1e30 => Key::Int(*x as i128),
            Value::Float(x) => Key::Float(x.to_bits()),
            Value::Text(text) => Key::Text(Rc::from(&**text)),
            Value::List(list) if list.kind.is_tuple() => Key::Tuple(
                list.items.iter().map(|item| Key::within(item, left)).collect::<Result<_, _>>()?,
            ),
            other => return wrong(format!("{} cannot be a key", other.kind())),
        })
    }
}

impl Map {
    pub fn get(&self, key: &Value) -> Option<&Value> {
        let place = self.index_by_key.get(&Key::of(key).ok()?)?;
        self.entries.get(*place).map(|(_, value)| value)
    }

    pub fn get_text(&self, key: &str) -> Option<&Value> {
        let place = self.index_by_key.get(&Key::Text(Rc::from(key)))?;
        self.entries.get(*place).map(|(_, value)| value)
    }
}

impl Value {
    /// A new string. The source is small or belongs to the caller.
    pub fn text(text: &str, meter: &Rc<Meter>) -> Result<Value, Fault> {
        meter.bytes(text.len())?;
        meter.take(text.len() + BASE)?;
        Ok(Value::Text(Text {
            string: Metered::taken(text.into(), text.len() + BASE, meter),
            safe: false,
        }))
    }

    /// The string marked as HTML or as plain.
    pub fn marked_safe(self, safe: bool) -> Value {
        match self {
            Value::Text(text) => Value::Text(Text { safe, ..text }),
            other => other,
        }
    }

    /// A string that was built step by step. Its memory is already counted.
    pub fn grown(text: super::meter::MeteredString, meter: &Rc<Meter>) -> Result<Value, Fault> {
        meter.take(BASE)?;
        let (text, taken) = text.finish();
        Ok(Value::Text(Text {
            string: Metered::taken(text.into_boxed_str(), taken + BASE, meter),
            safe: false,
        }))
    }

    /// Checks the limits before a list of this length is created.
    pub fn check_length(elements: usize, meter: &Rc<Meter>) -> Result<(), Fault> {
        let bytes = elements.saturating_mul(ELEMENT);
        meter.work(1 + elements / 4)?;
        meter.take(bytes)?;
        meter.give_back(bytes);
        Ok(())
    }

    pub fn list(items: Vec<Value>, meter: &Rc<Meter>) -> Result<Value, Fault> {
        Value::sequence(items, ListKind::List, meter)
    }

    pub fn tuple(items: Vec<Value>, meter: &Rc<Meter>) -> Result<Value, Fault> {
        Value::sequence(items, ListKind::Tuple, meter)
    }

    pub fn sequence(items: Vec<Value>, kind: ListKind, meter: &Rc<Meter>) -> Result<Value, Fault> {
        Ok(Value::List(Value::metered_list(items, kind, meter)?))
    }

    pub fn generator(items: Vec<Value>, meter: &Rc<Meter>) -> Result<Value, Fault> {
        let items = Value::metered_list(items, ListKind::List, meter)?;
        Ok(Value::Generator(Rc::new(Generator { items, at: Cell::new(0) })))
    }

    pub fn metered_list(
        items: Vec<Value>,
        kind: ListKind,
        meter: &Rc<Meter>,
    ) -> Result<Rc<Metered<List>>, Fault> {
        meter.work(1 + items.len() / 4)?;
        let inside = ContentFlags::of(items.iter())?;
        let bytes = BASE + items.len() * ELEMENT;
        meter.take(bytes)?;
        Ok(Metered::taken(List { items, kind, inside }, bytes, meter))
    }

    /// An object. A repeated key keeps its first position and gets the last value.
    pub fn map(entries: Vec<(Value, Value)>, meter: &Rc<Meter>) -> Result<Value, Fault> {
        let texts: usize =
            entries.iter().map(|(key, _)| if let Value::Text(t) = key { t.len() } else { 0 }).sum();
        let bytes = BASE + entries.len() * 4 * ELEMENT + texts;
        meter.work(1 + entries.len() + texts / 32)?;
        meter.take(bytes)?;
        let mut kept = Vec::<(Value, Value)>::with_capacity(entries.len());
        let mut index_by_key = HashMap::<Key, usize>::new();
        let filled = (|| {
            for (key, value) in entries {
                match index_by_key.entry(Key::of(&key)?) {
                    std::collections::hash_map::Entry::Occupied(place) => {
                        if let Some(entry) = kept.get_mut(*place.get()) {
                            entry.1 = value;
                        }
                    }
                    std::collections::hash_map::Entry::Vacant(place) => {
                        place.insert(kept.len());
                        kept.push((key, value));
                    }
                }
            }
            ContentFlags::of(kept.iter().map(|(_, value)| value))
        })();
        match filled {
            Ok(inside) => Ok(Value::Map(Metered::taken(
                Map { entries: kept, index_by_key, inside },
                bytes,
                meter,
            ))),
            Err(fault) => {
                meter.give_back(bytes);
                Err(fault)
            }
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The name of the value's type in error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Undefined => "an undefined value",
            Value::None => "none",
            Value::Bool(_) => "a boolean",
            Value::Int(_) | Value::Float(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(list) => match list.kind {
                ListKind::List => "a list",
                ListKind::Tuple | ListKind::Group => "a tuple",
                ListKind::Keys | ListKind::Values | ListKind::Items => "a view of an object",
                ListKind::Range(_) => "a range",
            },
            Value::Generator(_) => "a generator (make it a list by '|list')",
            Value::Map(_) => "an object",
            Value::Namespace(_) => "a namespace",
            Value::Loop(_) => "a loop",
            Value::Cycler(_) => "a cycler",
            Value::Macro(..) | Value::Function(_) | Value::Method(_) | Value::Joiner(_) => {
                "a function"
            }
        }
    }

    /// The truth value as in Python.
    pub fn is_true(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(x) => *x != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(list) => !list.items.is_empty(),
            Value::Map(map) => !map.entries.is_empty(),
            _ => true,
        }
    }

    pub fn inside(&self) -> ContentFlags {
        match self {
            Value::List(list) => list.inside,
            Value::Map(map) => map.inside,
            Value::Generator(generator) => generator.items.inside,
            Value::Cycler(cycler) => cycler.items.inside,
            Value::Joiner(joiner) => joiner.0.inside(),
            // A namespace keeps the scope of the whole template alive.
            Value::Macro(_, scope) => ContentFlags { depth: 0, namespace: scope.at > 0 },
            Value::Namespace(_) | Value::Loop(_) => ContentFlags { depth: 0, namespace: true },
            Value::Method(method) => method.0.inside(),
            _ => ContentFlags::default(),
        }
    }
}

impl ContentFlags {
    fn of<'v>(values: impl Iterator<Item = &'v Value>) -> Result<ContentFlags, Fault> {
        let mut all = ContentFlags::default();
        for value in values {
            let inside = value.inside();
            all = ContentFlags {
                depth: all.depth.max(inside.depth),
                namespace: all.namespace || inside.namespace,
            };
        }
        if all.depth >= MAX_DEPTH {
            return limit(format!("lists and objects are nested more than {MAX_DEPTH} deep"));
        }
        Ok(ContentFlags { depth: all.depth + 1, ..all })
    }
}

/// A value from the caller: JSON with ordered keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// Undefined.
    Undefined,
    /// `null`
    None,
    /// `true`, `false`
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// Any other number (with a fraction or exponent).
    Float(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Data>),
    /// An object.
    Map(Vec<(String, Data)>),
}

impl Data {
    /// Converts it to a value of the template. The JSON reader limits its nesting (128).
    pub fn into_value(self, meter: &Rc<Meter>) -> Result<Value, Fault> {
        Ok(match self {
            Data::Undefined => Value::Undefined,
            Data::None => Value::None,
            Data::Bool(b) => Value::Bool(b),
            Data::Int(n) => Value::Int(n),
            Data::Float(x) => Value::Float(x),
            Data::Text(text) => Value::text(&text, meter)?,
            Data::List(items) => {
                let items = items
                    .into_iter()
                    .map(|item| item.into_value(meter))
                    .collect::<Result<_, _>>()?;
                Value::list(items, meter)?
            }
            Data::Map(entries) => {
                let entry = |(key, value): (String, Data)| {
                    Ok((Value::text(&key, meter)?, value.into_value(meter)?))
                };
                Value::map(entries.into_iter().map(entry).collect::<Result<_, Fault>>()?, meter)?
            }
        })
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Data, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Data;

            fn expecting(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
                out.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<Data, E> {
                Ok(Data::None)
            }

            fn visit_bool<E>(self, b: bool) -> Result<Data, E> {
                Ok(Data::Bool(b))
            }

            fn visit_i64<E>(self, n: i64) -> Result<Data, E> {
                Ok(Data::Int(n.into()))
            }

            fn visit_u64<E>(self, n: u64) -> Result<Data, E> {
                Ok(Data::Int(n.into()))
            }

            fn visit_f64<E>(self, x: f64) -> Result<Data, E> {
                Ok(Data::Float(x))
            }

            fn visit_str<E>(self, text: &str) -> Result<Data, E> {
                Ok(Data::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Data, A::Error> {
                let mut all = Vec::new();
                while let Some(item) = seq.next_element()? {
                    all.push(item);
                }
                Ok(Data::List(all))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Data, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(Data::Map(all))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

/// The variable `loop`.
#[derive(Debug)]
pub struct Loop {
    pub items: Rc<Metered<List>>,
    pub at: Cell<usize>,
    pub depth: usize,
    /// The arguments of the last call of `changed`.
    pub last: RefCell<Option<Vec<Value>>>,
    pub(super) code: Arc<For>,
}
