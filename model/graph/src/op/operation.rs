//! The interface of operations.

use crate::state::{State, StateId};
use crate::value::{Value, ValueId};
use crate::weight::{Weight, WeightId};

/// The values, weights and states that ids stand for: a [`Graph`](crate::Graph).
pub trait Lookup {
    /// The value of an id.
    fn value(&self, id: ValueId) -> &Value;

    /// The weight of an id.
    fn weight(&self, id: WeightId) -> &Weight;

    /// The state of an id.
    fn state(&self, id: StateId) -> &State;
}

/// The interface of an operation.
pub trait Operation {
    /// The values that the operation reads.
    fn reads(&self) -> Vec<ValueId>;

    /// The values that the operation writes.
    fn writes(&self) -> Vec<ValueId>;

    /// Weights that the operation uses in their file format (quantised), for products.
    fn matrices(&self) -> Vec<WeightId> {
        vec![]
    }

    /// The weights that the operation needs as f32.
    fn vectors(&self) -> Vec<WeightId> {
        vec![]
    }

    /// The state that the operation changes. An operation with such a state must run for every
    /// token, in order.
    fn changed_state(&self) -> Option<StateId> {
        None
    }

    /// The states that the operation reads or changes. It runs on the device that has them.
    fn states(&self) -> Vec<StateId> {
        self.changed_state().into_iter().collect()
    }

    /// Bytes of weights read for one token.
    fn bytes(&self, graph: &dyn Lookup) -> u64 {
        self.matrices().iter().chain(&self.vectors()).map(|w| graph.weight(*w).bytes() as u64).sum()
    }

    /// The operation's name in the text form of a graph.
    fn name(&self) -> &'static str;

    /// The operation's arguments in the text form.
    fn args(&self, graph: &dyn Lookup) -> Vec<String>;
}

/// An optional argument in the text form.
pub(super) fn maybe(label: &str, graph: &dyn Lookup, weight: Option<WeightId>) -> Option<String> {
    weight.map(|w| format!("{label} {}", graph.weight(w).name))
}
