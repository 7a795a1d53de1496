//! Integration tests of `kjit-formats`.

mod dequant_oracle;
