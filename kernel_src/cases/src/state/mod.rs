pub(crate) mod conv;
pub(crate) mod decay;
pub(crate) mod linear;
pub(crate) mod scan;
pub(crate) mod sequences;
