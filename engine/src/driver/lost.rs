//! Lost devices: handles kernel faults that end the context of a device.
//!
//! After an illegal access, an assertion or a kernel timeout, every further call in this process
//! that uses the vendor's context of that device fails with the same code. The first such error is
//! recorded here; further calls are not sent to the driver. The context is recreated when the
//! device is opened again, but only if all objects of the old context were dropped: page-locked
//! memory ends with its context, and a remaining owner would write to unmapped memory.

use super::api::{Fault, FaultKind, Try};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The name of the call in the fault of a device that kjit abandoned.
const LEFT: &str = "kjit";

/// The contexts of a vendor's devices in this process, by ordinal.
#[derive(Default)]
pub(super) struct Contexts(Mutex<HashMap<u32, Context>>);

/// The state that all handles of an opened device share: the fault after which it was lost.
#[derive(Clone, Debug, Default)]
pub(super) struct Context(Arc<OnceLock<Fault>>);

impl Contexts {
    /// Joins the context of a device that is being opened. `renew` recreates a lost context if none
    /// of its objects exists any more.
    pub fn join(&self, ordinal: u32, renew: impl FnOnce() -> Try<()>) -> Try<Context> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let context = all.entry(ordinal).or_default();
        if context.0.get().is_some() {
            if Arc::strong_count(&context.0) > 1 {
                let held = |f: Fault| {
                    // Objects that cannot be dropped keep the context of an abandoned device.
                    let then = if f.call == LEFT {
                        "start a new process to use it again"
                    } else {
                        "drop all of its objects, then open it again"
                    };
                    Fault { says: format!("{}; {then}", f.says), ..f }
                };
                context.check().map_err(held)?;
            }
            renew()?;
            *context = Context::default();
        }
        Ok(context.clone())
    }
}

impl Context {
    /// Returns the recorded fault, if there is one.
    pub fn check(&self) -> Try<()> {
        self.0.get().map_or(Ok(()), |fault| Err(fault.clone()))
    }

    /// Refuses all further calls, because work on the device does not end, and freeing anything
    /// would wait for it.
    pub fn leave(&self) {
        let says = "it was abandoned because its work does not end".to_owned();
        let _ = self.0.set(Fault { call: LEFT, code: 0, says, kind: FaultKind::Lost });
    }

    /// Records a fault that ends the context.
    pub fn note(&self, fault: Fault) -> Fault {
        if fault.kind == FaultKind::Lost {
            // Only the first fault is recorded; it causes the later ones.
            let _ = self.0.set(fault.clone());
        }
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_context_is_renewed_after_last_user_drops_it() {
        let fault = |kind| Fault {
            call: "cuStreamSynchronize",
            code: 700,
            says: "an illegal access".to_owned(),
            kind,
        };
        let contexts = Contexts::default();
        let none = || panic!("nothing to renew");
        let (a, b) = (contexts.join(0, none).unwrap(), contexts.join(0, none).unwrap());
        a.note(fault(FaultKind::Other));
        assert!(b.check().is_ok());
        a.note(fault(FaultKind::Lost));
        assert_eq!(b.check().unwrap_err().code, 700);
        assert!(contexts.join(1, none).unwrap().check().is_ok(), "another device");
        assert!(
            contexts.join(0, none).unwrap_err().says.contains("drop all"),
            "an object still uses it"
        );
        drop((a, b));
        assert!(
            contexts.join(0, || Err(fault(FaultKind::Lost))).is_err(),
            "an abandoned device cannot be renewed"
        );
        let mut renewed = 0;
        let c = contexts
            .join(0, || {
                renewed += 1;
                Ok(())
            })
            .unwrap();
        assert!(renewed == 1 && c.check().is_ok() && contexts.join(0, none).is_ok());
    }
}
