//! The engine and the cache as the shared flags want them.

use crate::args::Shared;
use crate::report::say;
use kjit_engine::{Config, Engine};

/// The cache that the flags name. Its warnings go to stderr: the run goes on, slower.
pub fn cache_config(shared: &Shared) -> kjit_cache::Config {
    let mut cache = kjit_cache::Config::for_app("kjit").read_only("/usr/share/kjit/packs");
    if let Some(dir) = &shared.cache_dir {
        cache = cache.dir(dir);
    }
    if shared.no_cache {
        cache = cache.memory_only();
    }
    if !shared.quiet {
        cache = cache.on_warning(|w| say(format_args!("warning: {w}")));
    }
    cache
}

/// The engine's setup that the flags ask for.
pub fn config(shared: &Shared) -> Config {
    let mut config = Config::new().cache(cache_config(shared));
    if let Some(file) = &shared.compiler_path {
        config = config.compiler_path(file);
    }
    config
}

/// An engine as the flags ask for.
pub fn engine(shared: &Shared) -> Engine {
    Engine::new(config(shared))
}
