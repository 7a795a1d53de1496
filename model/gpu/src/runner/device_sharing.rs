//! Detects models that share a device with a tensor split's persistent kernels.
//!
//! A persistent kernel occupies a whole device and waits for its counterparts on the other devices.
//! If two such models use the same devices, the kernel of one model could run on the first device
//! and the kernel of the other on the second. Each would wait for a kernel that cannot start.
//! (Launches that reduce rows are small and can run side by side.) So a model uses its persistent
//! kernel only while no other tensor-split model of the process uses its devices. When another
//! model opens, it uses ordinary launches from the next token on.

use super::GpuRunner;
use kjit_exec::SessionError;

impl GpuRunner {
    /// Stops using the persistent kernel if another model is on one of the devices. Called between
    /// two tokens. Returns whether it stopped. The other devices of this model may stop one token
    /// later, because the reductions of both kinds are compatible.
    pub(super) fn leave_persistent(&mut self) -> Result<bool, SessionError> {
        let Some(sole) = self.sole.clone() else { return Ok(false) };
        if self.loaded.persistent.is_empty() || !sole.shared() {
            return Ok(false);
        }
        self.launch_tokens()?;
        sole.left();
        Ok(true)
    }
}
