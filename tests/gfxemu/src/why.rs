//! The reason why an instruction cannot execute.

/// The reason why an instruction cannot execute.
#[derive(Clone, Debug)]
pub struct Why {
    /// In words.
    pub what: String,
    /// The lane, if it is one lane's.
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
    /// Names the lane.
    pub fn at(lane: usize) -> impl FnOnce(String) -> Why {
        move |what| Why { what, lane: Some(lane as u32) }
    }
}
