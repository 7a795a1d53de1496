//! The operations, one file each. A file has a struct of inputs, parameters and outputs, its text
//! form, and its bytes per token. A new operation needs a file here, a name in the list below and a
//! method of [`Builder`](crate::Builder) in `build`.
//!
//! The planner of the GPU groups operations into launches (`fuse`). An operation without a rule in
//! `fuse` is a separate step. An operation without a kernel is refused, and the error names it
//! (`fit`).

mod act;
mod adapter_scale;
mod add;
mod affine;
mod attention;
mod attention_temperature;
mod concat;
mod conv;
mod dot;
mod embed;
mod expert_matmul;
mod expert_sum;
mod glu;
mod head_matmul;
mod input_rows;
mod kv_write;
mod linear_attention;
mod matmul;
mod norm;
mod offload;
mod operation;
mod placed;
mod reduce;
mod repeat;
mod rope;
mod route;
mod scan;
mod shift;
mod slice;
mod spread;
mod top_keys;

pub use attention::Mask;
pub use embed::By;
pub use linear_attention::LinearInputs;
pub use norm::NormKind;
pub use route::{Gating, Groups};
pub use scan::ScanInputs;

pub use operation::{Lookup, Operation};

use crate::state::StateId;
use crate::value::ValueId;
use crate::weight::WeightId;

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
            /// The values that the operation reads.
            pub fn reads(&self) -> Vec<ValueId> {
                match self { $(Op::$Name(op) => op.reads(),)* }
            }

            /// The values that the operation writes: none if it only changes a state, two for a
            /// routing, otherwise one.
            pub fn writes(&self) -> Vec<ValueId> {
                match self { $(Op::$Name(op) => op.writes(),)* }
            }

            /// The weights that the operation needs as f32.
            pub fn vectors(&self) -> Vec<WeightId> {
                match self { $(Op::$Name(op) => op.vectors(),)* }
            }

            /// The weights that the operation reads.
            pub fn weights(&self) -> Vec<WeightId> {
                let mut all = match self { $(Op::$Name(op) => op.matrices(),)* };
                all.extend(self.vectors());
                all
            }

            /// The state that the operation changes.
            pub fn changed_state(&self) -> Option<StateId> {
                match self { $(Op::$Name(op) => op.changed_state(),)* }
            }

            /// The states that the operation reads or changes.
            pub fn states(&self) -> Vec<StateId> {
                match self { $(Op::$Name(op) => op.states(),)* }
            }

            /// Bytes of weights read for one token.
            pub fn bytes(&self, graph: &dyn Lookup) -> u64 {
                match self { $(Op::$Name(op) => op.bytes(graph),)* }
            }

            /// The operation's name in the text form of a graph.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$Name(op) => op.name(),)* }
            }

            /// The operation's arguments in the text form.
            pub fn args(&self, graph: &dyn Lookup) -> Vec<String> {
                match self { $(Op::$Name(op) => op.args(graph),)* }
            }
        }
    };
}

operations! {
    act::Act,
    adapter_scale::AdapterScale,
    add::Add,
    affine::Affine,
    attention::Attention,
    concat::Concat,
    conv::Conv,
    dot::Dot,
    offload::Offload,
    embed::Embed,
    expert_matmul::ExpertMatMul,
    expert_sum::ExpertSum,
    input_rows::InputRows,
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
    attention_temperature::AttentionTemperature,
    top_keys::TopKeys,
}
