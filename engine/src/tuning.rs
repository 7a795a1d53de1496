//! Tuning results in the cache. They are stored next to the code objects and under the same rules:
//! verified by hash, written atomically, also in packs and read-only layers.
//!
//! There are two kinds. *Timings* are all measurements of a subject's variants, by target, driver
//! version, source and subject. The *choice* is the variant in use. It does not include the driver
//! version, because `warm` on a machine without a card must find the same kernels as `run`. Neither
//! depends on the number of a device.

use crate::arch::Target;
use crate::engine::Engine;
use crate::error::Result;
use crate::key::KERNEL_ABI;
use crate::source::Source;
use kjit_cache::{Key, KeyBuilder};

/// The subject of a tuning result.
#[derive(Debug, Clone, Copy)]
pub struct TuningSubject<'a> {
    /// The target. Its feature flags are ignored. Its variant is not, because the kernels differ.
    pub target: &'a Target,
    /// The default source of the kernel. A source with different contents is a different subject.
    pub source: &'a Source,
    /// The computation and its sizes, as a string. Equal subjects have equal strings.
    pub what: &'a str,
}

impl TuningSubject<'_> {
    fn key(&self, domain: &str) -> Result<KeyBuilder> {
        let mut key = Key::builder(domain)
            .field("abi", KERNEL_ABI.to_string())
            .field("arch", self.target.id());
        let variant = self.target.variant();
        if !variant.is_empty() {
            key = key.field("variant", variant);
        }
        key = key.field("what", self.what).content("main", self.source.main_text());
        for (name, text) in self.source.reached()? {
            key = key.field("header", name).content("text", text);
        }
        Ok(key)
    }

    /// The digest of the subject, in hexadecimal: equal for equal subjects.
    ///
    /// # Errors
    /// The source includes a missing header.
    pub fn digest(&self) -> Result<String> {
        Ok(self.choice()?.digest().hex())
    }

    fn choice(&self) -> Result<Key> {
        Ok(self.key(CHOICE)?.finish())
    }

    fn timings(&self, driver: (u32, u32)) -> Result<Key> {
        Ok(self.key(TIMINGS)?.field("driver", format!("{}.{}", driver.0, driver.1)).finish())
    }
}

const CHOICE: &str = "kjit tuning choice";
const TIMINGS: &str = "kjit tuning timings";

/// The architecture of a tuning record; `None` for other records.
#[must_use]
pub fn tuned_arch(key: &Key) -> Option<String> {
    let ours = [CHOICE, TIMINGS].contains(&key.domain().as_str());
    let arch = key.fields().into_iter().find(|field| field.label == "arch").filter(|_| ours)?;
    Some(arch.value.to_string())
}

impl Engine {
    /// The stored choice. The caller must validate it.
    ///
    /// # Errors
    /// The source includes a missing header.
    pub fn tuning_choice(&self, subject: &TuningSubject<'_>) -> Result<Option<Vec<u8>>> {
        Ok(self.cache().record(&subject.choice()?))
    }

    /// Stores a choice, replacing the previous one.
    ///
    /// # Errors
    /// See [`Engine::tuning_choice`].
    pub fn keep_tuning_choice(&self, subject: &TuningSubject<'_>, value: &[u8]) -> Result<()> {
        self.cache().put_record(&subject.choice()?, value);
        Ok(())
    }

    /// Rejects an invalid choice, with a warning.
    ///
    /// # Errors
    /// See [`Engine::tuning_choice`].
    pub fn reject_tuning_choice(&self, subject: &TuningSubject<'_>, why: &str) -> Result<()> {
        let why =
            format!("a tuned choice for '{}' on {}: {why}", subject.what, subject.target.id());
        self.cache().reject_record(&subject.choice()?, why);
        Ok(())
    }

    /// All timings of a subject for this driver version.
    ///
    /// # Errors
    /// See [`Engine::tuning_choice`].
    pub fn tuning_timings(
        &self,
        subject: &TuningSubject<'_>,
        driver: (u32, u32),
    ) -> Result<Option<Vec<u8>>> {
        Ok(self.cache().record(&subject.timings(driver)?))
    }

    /// Stores timings, replacing the previous ones.
    ///
    /// # Errors
    /// See [`Engine::tuning_choice`].
    pub fn keep_tuning_timings(
        &self,
        subject: &TuningSubject<'_>,
        driver: (u32, u32),
        value: &[u8],
    ) -> Result<()> {
        self.cache().put_record(&subject.timings(driver)?, value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn source(text: &str) -> Source {
        Source::new("k", "k.hip", text.to_owned())
    }

    #[test]
    fn tuning_choice_matches_only_its_source_sizes_and_architecture() {
        let engine =
            Engine::new(Config::new().cache(kjit_cache::Config::for_app("kjit").memory_only()));
        let (plain, flagged, other) = ("gfx1010", "gfx1010:xnack-", "gfx942");
        let [plain, flagged, other] = [plain, flagged, other].map(|t| Target::parse(t).unwrap());
        let text = source("int x;");
        let subject = TuningSubject { target: &plain, source: &text, what: "4096 rows" };
        engine.keep_tuning_choice(&subject, b"wide").unwrap();
        let found = |s: TuningSubject<'_>| engine.tuning_choice(&s).unwrap().is_some();
        assert!(found(subject) && found(TuningSubject { target: &flagged, ..subject }));
        assert!(!found(TuningSubject { target: &other, ..subject }));
        // Tunings of other kernels of this chip are measured independently.
        for variant in [plain.f32_alone(), plain.at_wave(64).unwrap()] {
            assert!(!found(TuningSubject { target: &variant, ..subject }), "{variant}");
        }
        assert!(!found(TuningSubject { what: "4097 rows", ..subject }));
        assert!(!found(TuningSubject { source: &source("int y;"), ..subject }));
        engine.reject_tuning_choice(&subject, "it is nonsense").unwrap();
        assert!(!found(subject));
        engine.keep_tuning_timings(&subject, (6, 2), b"slow").unwrap();
        engine
            .cache()
            .put_record(&Key::builder("something else").field("arch", "gfx1010").finish(), b"");
        let mut archs: Vec<_> =
            engine.cache().records().iter().map(|(key, _)| tuned_arch(key)).collect();
        archs.sort();
        assert_eq!(archs, [None, Some("gfx1010".to_owned())]);
        assert!(engine.cache().warnings().iter().any(|w| w.to_string().contains("nonsense")));
    }

    #[test]
    fn tuning_timings_are_stored_per_driver() {
        let engine =
            Engine::new(Config::new().cache(kjit_cache::Config::for_app("kjit").memory_only()));
        let (target, text) = (Target::parse("sm_90").unwrap(), source("int x;"));
        let subject = TuningSubject { target: &target, source: &text, what: "4096 rows" };
        engine.keep_tuning_timings(&subject, (13, 0), b"fast").unwrap();
        assert_eq!(
            engine.tuning_timings(&subject, (13, 0)).unwrap().as_deref(),
            Some(&b"fast"[..])
        );
        assert_eq!(engine.tuning_timings(&subject, (13, 1)).unwrap(), None);
    }
}
