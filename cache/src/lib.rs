//! What is kept on disk: entries, keys, layers, locks, eviction, packs. It knows bytes and keys, and has never heard of GPUs.
