//! Variables of the environment.

/// Environment variable with the secret.
pub const SECRET: &str = "KJIT_RANKS_SECRET";
