//! Families of attention: keys and values and latents, their caches, decoding and prompts.

pub mod attend;
pub mod cache_rows;
pub mod flash;
pub mod heads;
pub mod indexer_scores;
pub mod kv;
pub mod latent;
pub mod latent_flash;
pub mod rope_kv;
pub mod top_keys;
