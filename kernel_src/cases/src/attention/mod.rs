pub(crate) mod attend;
pub(crate) mod cache_rows;
pub(crate) mod flash;
pub(crate) mod indexer_scores;
pub(crate) mod latent;
pub(crate) mod latent_flash;
pub(crate) mod rope_kv;
pub(crate) mod top_keys;
