pub(crate) mod adjust;
pub(crate) mod advance;
pub(crate) mod argmax;
pub(crate) mod draw;
pub(crate) mod route;
