//! Verdicts on code objects that were run on a device before they are used there, in the cache beside the
//! code objects and under the same rules.
//!
//! A verdict is about a kind of device (its name and architecture, not its number), a version of its driver
//! and one build: another compiler's code object of the same source is another subject.

use crate::code_object::CodeObject;
use crate::driver::DeviceInfo;
use crate::engine::Engine;
use kjit_cache::Key;

/// What a verdict is about.
#[derive(Debug, Clone, Copy)]
pub struct ProofSubject<'a> {
    /// Where it ran.
    pub device: &'a DeviceInfo,
    /// What ran.
    pub code: &'a CodeObject,
    /// What it was to compute: a text that the caller makes the same every time.
    pub what: &'a str,
}

impl ProofSubject<'_> {
    fn key(&self) -> Key {
        let (major, minor) = self.device.driver;
        Key::builder("kjit kernel proof")
            .field("name", self.device.name.as_str())
            .field("arch", self.device.arch_id.as_str())
            .field("driver", format!("{major}.{minor}"))
            .field("build", self.code.digest().hex())
            .field("what", self.what)
            .finish()
    }
}

impl Engine {
    /// The verdict that was kept.
    #[must_use]
    pub fn proof(&self, subject: &ProofSubject<'_>) -> Option<Vec<u8>> {
        self.cache().record(&subject.key())
    }

    /// Keeps a verdict, in place of the one before.
    pub fn keep_proof(&self, subject: &ProofSubject<'_>, verdict: &[u8]) {
        self.cache().put_record(&subject.key(), verdict);
    }
}
