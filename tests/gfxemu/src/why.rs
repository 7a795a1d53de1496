//! The reason why an instruction cannot execute.

/// The reason why an instruction cannot execute.
#[derive(Clone, Debug)]
pub struct Why {
    /// The reason as text.
    pub what: String,
    /// The lane, if the reason concerns a single lane.
    pub lane: Option<u32>,
}

impl From<String> for Why {
    fn from(what: String) -> Why {
        Why { what, lane: None }
    }
}

impl From<&str> for Why {
    fn from(what: &str) -> Why {
        Why { what: what.into(), lane: None }
    }
}

impl Why {
    /// Adds the lane to an error.
    pub fn at(lane: usize) -> impl FnOnce(String) -> Why {
        move |what| Why { what, lane: Some(lane as u32) }
    }
}
