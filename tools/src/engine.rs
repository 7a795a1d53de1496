//! Creates the engine and the cache from the shared flags.

use crate::args::Shared;
use crate::report::say;
use kjit_cache::RemotePacks;
use kjit_engine::{Config, Engine};
use kjit_hub::Settings;
use kjit_hub::remote::RemoteFiles;
use std::fmt::Display;
use std::sync::Once;
use std::time::Duration;

/// The cache of these flags. Its warnings go to stderr; the command continues and is slower.
pub fn cache_config(shared: &Shared) -> kjit_cache::Config {
    let mut cache = kjit_cache::Config::for_app("kjit").read_only("/usr/share/kjit/packs");
    if let Some(dir) = &shared.cache_dir {
        cache = cache.dir(dir);
    }
    if shared.no_cache {
        cache = cache.memory_only();
    }
    if let Some(remote) = remote(shared) {
        cache = cache.remote(remote);
    }
    if !shared.quiet {
        cache = cache.on_warning(|w| say(format_args!("warning: {w}")));
    }
    cache
}

/// The longest time of a request to a server of kernels, and of all requests together: so long may
/// a server hold a start up.
const REMOTE: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(20)];

/// The server of `--cache-remote`.
fn remote(shared: &Shared) -> Option<RemotePacks> {
    static PRINTED: Once = Once::new();
    let address = shared.cache_remote.as_ref()?;
    let leave = |why: &dyn Display| {
        if !shared.quiet {
            PRINTED.call_once(|| say(format_args!("warning: {address} is not queried: {why}")));
        }
        None
    };
    if shared.cache_signer.is_empty() {
        return leave(&"name the key that signs its kernels (--cache-signer KEY)");
    }
    let [patience, budget] = REMOTE;
    let files = Settings::from_env().and_then(|s| RemoteFiles::new(&s, address, patience));
    match files {
        Err(why) => leave(&why),
        Ok(files) => {
            let fetch = move |name: &str| files.get(name);
            let signers = shared.cache_signer.clone();
            Some(RemotePacks::new(address.to_string(), signers, budget, fetch))
        }
    }
}

/// Options of the engine. `KJIT_COMPILE_SECONDS` and `KJIT_COMPILE_MEMORY` (MiB) limit a compile,
/// `KJIT_DISCOVERY_SECONDS` the search for devices. With `KJIT_PROVE=all` kernels are also tested
/// on NVIDIA's devices before use, and the forms of a token are tried; `KJIT_PROVE=kernels` only
/// tests kernels.
pub fn config(shared: &Shared) -> Config {
    let mut config = Config::new().cache(cache_config(shared));
    if let Some(file) = &shared.compiler_path {
        config = config.compiler_path(file);
    }
    if let Some(seconds) = number("KJIT_COMPILE_SECONDS", shared) {
        config = config.timeout(Duration::from_secs(seconds));
    }
    if let Some(seconds) = number("KJIT_DISCOVERY_SECONDS", shared) {
        config = config.discovery_limit(Duration::from_secs(seconds));
    }
    if let Some(mebibytes) = number("KJIT_COMPILE_MEMORY", shared) {
        config = config.memory_limit(mebibytes.saturating_mul(1 << 20));
    }
    match std::env::var("KJIT_PROVE").unwrap_or_default().as_str() {
        "" => {}
        "all" => config = config.prove_all(),
        "kernels" => config = config.without_trial(),
        other if !shared.quiet => say(format_args!(
            "warning: KJIT_PROVE={other} is neither 'all' nor 'kernels', and is ignored"
        )),
        _ => {}
    }
    config
}

/// Reads a positive number from a variable. Any other value is reported and ignored.
fn number(variable: &str, shared: &Shared) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|v| !v.is_empty())?;
    let number = text.parse().ok().filter(|n| *n > 0);
    if number.is_none() && !shared.quiet {
        say(format_args!(
            "warning: {variable}={text} is not a whole number above 0, and is ignored"
        ));
    }
    number
}

/// An engine of these flags.
pub fn engine(shared: &Shared) -> Engine {
    Engine::new(config(shared))
}
