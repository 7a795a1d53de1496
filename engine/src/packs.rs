//! Explanations for a cache miss: the architectures of the existing packs, and code that exists but
//! cannot run here.

use crate::arch::Target;
use crate::driver;
use crate::engine::Engine;
use crate::key::Job;
use kjit_cache::{Key, Origin, Pack, Scope};
use std::collections::BTreeSet;

/// The key of a pack's metadata with its architectures, separated by commas.
pub const PACK_ARCHS: &str = "archs";

impl Engine {
    /// Why the existing packs contain nothing for a target: one sentence with the architectures of
    /// each pack. `None` without packs.
    #[must_use]
    pub fn packs_lack(&self, target: &Target) -> Option<String> {
        let packs: Vec<_> = self
            .inner
            .cache
            .packs()
            .into_iter()
            .map(|pack| (pack.path().display(), self.archs(pack)))
            .collect();
        if let Some((path, _)) =
            packs.iter().find(|(_, archs)| archs.iter().any(|arch| target.runs(arch)))
        {
            let why = "but not this kernel: the pack is for a different model or version of kjit";
            return Some(format!("the pack {path} has {target}, {why}"));
        }
        let lacks = |(path, archs): &(_, BTreeSet<String>)| {
            let has = archs.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            format!(
                "the pack {path} has {} and not {target}",
                if has.is_empty() { "nothing" } else { &has }
            )
        };
        (!packs.is_empty()).then(|| packs.iter().map(lacks).collect::<Vec<_>>().join("; "))
    }

    /// Why existing code of this source is not used: its compiler is newer than the driver. The
    /// message names both versions.
    pub(crate) fn too_new(&self, job: &Job, source: &Key) -> Option<String> {
        let (major, minor) = driver::driver_version(job.target.vendor())?;
        let found = self.inner.cache.find(source, Scope::Everywhere, |_| true)?;
        let (needs, maker) =
            (found.entry.needs().get("driver")?, found.entry.meta().get("compiler")?);
        Some(format!(
            "the pack has this kernel, compiled by {maker}, but it needs driver {needs} or newer (installed: {major}.{minor}): update the driver, or compile with a compiler that is not newer than it"
        ))
    }

    fn archs(&self, pack: &Pack) -> BTreeSet<String> {
        match pack.meta().get(PACK_ARCHS) {
            Some(said) => {
                said.split(',').filter(|arch| !arch.is_empty()).map(str::to_owned).collect()
            }
            // A different program wrote the pack: its entries state the architectures.
            None => {
                let here = Origin::ReadOnly(pack.path().to_owned());
                let entries =
                    self.inner.cache.list().into_iter().filter(|entry| entry.layer == here);
                entries.filter_map(|entry| entry.meta.get("arch").cloned()).collect()
            }
        }
    }
}
