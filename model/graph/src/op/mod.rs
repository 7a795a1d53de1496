//! The operations, one file each: a struct of inputs, parameters and outputs, its text form, its
//! computation on the host, and the builder's method that appends it. A new operation is a file
//! here and a name in the list below.
//!
//! The GPU's side groups operations into launches (`fuse`); an operation that no rule there knows
//! is a step of its own, and one that no kernel computes is refused by name (`fit`).

mod act;
mod add;
mod affine;
mod attention;
mod concat;
mod conv;
mod dot;
mod elsewhere;
mod embed;
mod expert_matmul;
mod expert_sum;
mod given;
mod glu;
mod head_matmul;
mod kv_write;
mod linear_attention;
mod matmul;
mod norm;
mod placed;
mod reduce;
mod repeat;
mod rope;
mod route;
mod scan;
mod shift;
mod slice;
mod spread;
mod temper;
mod top_keys;

pub use attention::Mask;
pub use embed::By;
pub use linear_attention::LinearInputs;
pub use norm::NormKind;
pub use route::{Gating, Groups};
pub use scan::ScanInputs;

use super::{Graph, StateId, ValueId, WeightId};

/// The interface of an operation.
pub trait Operation: Into<Op> {
    /// The values that it reads.
    fn reads(&self) -> Vec<ValueId>;

    /// The values that it writes.
    fn writes(&self) -> Vec<ValueId>;

    /// The weights that it multiplies with in their file format.
    fn matrices(&self) -> Vec<WeightId> {
        vec![]
    }

    /// The weights that it needs as f32.
    fn vectors(&self) -> Vec<WeightId> {
        vec![]
    }

    /// The state that it changes. Such an operation must run for every token, in order.
    fn keeps(&self) -> Option<StateId> {
        None
    }

    /// The states that it reads or changes. It runs on the device that has them.
    fn states(&self) -> Vec<StateId> {
        self.keeps().into_iter().collect()
    }

    /// Bytes of weights read for one token.
    fn bytes(&self, graph: &Graph) -> u64 {
        self.matrices().iter().chain(&self.vectors()).map(|w| graph.weight(*w).bytes() as u64).sum()
    }

    /// Its name in the text form of a graph.
    fn name(&self) -> &'static str;

    /// Its arguments in the text form.
    fn args(&self, graph: &Graph) -> Vec<String>;
}

/// Defines the enum of all operations from their list.
macro_rules! operations {
    ($($module:ident::$Name:ident,)*) => {
        $(pub use $module::$Name;)*

        /// One operation.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Op {
            $(#[doc = concat!("[`struct@", stringify!($Name), "`]")] $Name($Name),)*
        }

        $(impl From<$Name> for Op {
            fn from(op: $Name) -> Op {
                Op::$Name(op)
            }
        })*

        impl Op {
            /// The values that it reads.
            pub fn reads(&self) -> Vec<ValueId> {
                match self { $(Op::$Name(op) => op.reads(),)* }
            }

            /// The values that it writes: none if it only changes a state, two for a routing, else
            /// one.
            pub fn writes(&self) -> Vec<ValueId> {
                match self { $(Op::$Name(op) => op.writes(),)* }
            }

            /// The weights that it needs as f32.
            pub fn vectors(&self) -> Vec<WeightId> {
                match self { $(Op::$Name(op) => op.vectors(),)* }
            }

            /// The weights that it reads.
            pub fn weights(&self) -> Vec<WeightId> {
                let mut all = match self { $(Op::$Name(op) => op.matrices(),)* };
                all.extend(self.vectors());
                all
            }

            /// The state that it changes.
            pub fn keeps(&self) -> Option<StateId> {
                match self { $(Op::$Name(op) => op.keeps(),)* }
            }

            /// The states that it reads or changes.
            pub fn states(&self) -> Vec<StateId> {
                match self { $(Op::$Name(op) => op.states(),)* }
            }

            /// Bytes of weights read for one token.
            pub fn bytes(&self, graph: &Graph) -> u64 {
                match self { $(Op::$Name(op) => op.bytes(graph),)* }
            }

            /// Its name in the text form of a graph.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$Name(op) => op.name(),)* }
            }

            /// Its arguments in the text form.
            pub fn args(&self, graph: &Graph) -> Vec<String> {
                match self { $(Op::$Name(op) => op.args(graph),)* }
            }
        }
    };
}

operations! {
    act::Act,
    add::Add,
    affine::Affine,
    attention::Attention,
    concat::Concat,
    conv::Conv,
    dot::Dot,
    elsewhere::Elsewhere,
    embed::Embed,
    expert_matmul::ExpertMatMul,
    expert_sum::ExpertSum,
    given::Given,
    glu::Glu,
    head_matmul::HeadMatMul,
    kv_write::KvWrite,
    linear_attention::LinearAttention,
    matmul::MatMul,
    norm::Norm,
    placed::Placed,
    reduce::Reduce,
    repeat::Repeat,
    rope::Rope,
    route::Route,
    scan::Scan,
    shift::Shift,
    slice::Slice,
    spread::Spread,
    temper::Temper,
    top_keys::TopKeys,
}

/// An optional argument in the text form.
fn maybe(label: &str, graph: &Graph, weight: Option<WeightId>) -> Option<String> {
    weight.map(|w| format!("{label} {}", graph.weight(w).name))
}
