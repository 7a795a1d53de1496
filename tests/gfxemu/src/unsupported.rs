//! The reason why an instruction cannot execute.

/// The reason why an instruction cannot execute.
#[derive(Clone, Debug)]
pub struct Unsupported {
    /// The reason as text.
    pub what: String,
    /// The lane, if the reason concerns a single lane.
    pub lane: Option<u32>,
}

impl From<String> for Unsupported {
    fn from(what: String) -> Unsupported {
        Unsupported { what, lane: None }
    }
}

impl From<&str> for Unsupported {
    fn from(what: &str) -> Unsupported {
        Unsupported { what: what.into(), lane: None }
    }
}

impl Unsupported {
    /// Adds the lane to an error.
    pub fn at(lane: usize) -> impl FnOnce(String) -> Unsupported {
        move |what| Unsupported { what, lane: Some(lane as u32) }
    }
}
