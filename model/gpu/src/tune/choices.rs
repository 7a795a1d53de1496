//! Tuning choices in the cache, read when a plan needs them.

use kjit_engine::{Engine, Target, TuningSubject};
use kjit_kernels::spec::Spec;
use kjit_kernels::tuning::{Choices, Tuning};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The tuning choices in an engine's cache: its own directory, packs and other read-only layers. If
/// a record does not name a variant of its kernel, it is set aside with a warning of the cache, and
/// the shipped default is used.
pub struct StoredTunings<'e> {
    engine: &'e Engine,
    /// Previous results. A plan needs the choice of one spec for each layer.
    asked: Mutex<HashMap<(String, String), Option<Tuning>>>,
}

impl<'e> StoredTunings<'e> {
    /// The choices of this engine.
    #[must_use]
    pub fn of(engine: &'e Engine) -> StoredTunings<'e> {
        StoredTunings { engine, asked: Mutex::default() }
    }

    /// Saves a choice for all later plans with this cache. `measured` describes its origin for
    /// users.
    ///
    /// # Errors
    /// The spec has no kernel on this target.
    pub fn keep(
        &self,
        spec: &Spec,
        target: &Target,
        tuning: Tuning,
        measured: &str,
    ) -> Result<(), String> {
        let (what, kernel) =
            (spec.to_string(), spec.with(None).kernel(target).map_err(|e| e.to_string())?);
        let subject = TuningSubject { target, source: &kernel.source, what: &what };
        let record = json!({ "tuning": tuning.to_string(), "measured": measured }).to_string();
        self.engine.keep_tuning_choice(&subject, record.as_bytes()).map_err(|e| e.to_string())?;
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&(target.to_string(), what));
        Ok(())
    }

    fn read(&self, spec: &Spec, what: &str, target: &Target) -> Option<Tuning> {
        // Kernels without tunings have no record.
        spec.tuning(target)?;
        let kernel = spec.with(None).kernel(target).ok()?;
        let subject = TuningSubject { target, source: &kernel.source, what };
        let record = self.engine.tuning_choice(&subject).ok()??;
        let text = chosen(&record);
        let tuning = text.as_deref().and_then(|text| spec.named(target, text));
        if tuning.is_none() {
            let why = text.map_or("it is not a tuning record".to_owned(), |t| {
                format!("'{t}' is not a variant of this kernel")
            });
            // Even if setting it aside fails, the record is not used.
            let _ = self.engine.reject_tuning_choice(&subject, &why);
        }
        tuning
    }
}

impl fmt::Debug for StoredTunings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

impl Choices for StoredTunings<'_> {
    fn choice(&self, spec: &Spec, target: &Target) -> Option<Tuning> {
        let key = (target.to_string(), spec.to_string());
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&known) = asked.get(&key) {
            return known;
        }
        let found = self.read(spec, &key.1, target);
        asked.insert(key, found);
        found
    }
}

/// The text of the tuning in a record.
fn chosen(record: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(record).ok()?;
    Some(value.get("tuning")?.as_str()?.to_owned())
}
