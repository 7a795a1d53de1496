//! Sources of cases' buffers on the device. One upload serves all cases, because each copy from the
//! host waits for other copies to the device.

use super::content::{aligned, content, repeat};
use kjit_engine::{DeviceBuffer, Error, Result, Stream};
use kjit_kernel_cases::{Case, Content};
use std::collections::HashMap;
use std::sync::Arc;

/// The initial bytes of the buffers of some cases, each once.
pub struct Sources {
    memory: DeviceBuffer<u8>,
    /// Offsets by host address. The bytes are stored, so that an address is not reused.
    places: HashMap<usize, (Arc<Vec<u8>>, usize)>,
}

impl Sources {
    /// Uploads the sources of some cases.
    ///
    /// # Errors
    /// An allocation failed; errors of the device.
    pub fn of<'c>(stream: &Stream, cases: impl Iterator<Item = &'c Case>) -> Result<Sources> {
        let (mut places, mut all) = (HashMap::new(), vec![]);
        for content in cases.flat_map(|case| case.args.iter().filter_map(content)) {
            let (source, _) = content.source();
            if content.uniform().is_none() && !places.contains_key(&Arc::as_ptr(source).addr()) {
                places.insert(Arc::as_ptr(source).addr(), (Arc::clone(source), all.len()));
                all.extend_from_slice(source);
                all.resize(aligned(all.len()), 0);
            }
        }
        let memory = stream.device().buffer(all.len().max(1))?;
        if !all.is_empty() {
            stream.write(&memory, &all)?;
        }
        Ok(Sources { memory, places })
    }

    /// Fills a buffer with its content.
    ///
    /// # Errors
    /// A case without its sources; errors of the device.
    pub fn put(&self, stream: &Stream, content: &Content, buffer: &DeviceBuffer<u8>) -> Result<()> {
        if let Some(byte) = content.uniform() {
            return stream.fill(buffer, byte);
        }
        let (source, from) = content.source();
        let none = || Error::Buffer("the source of a buffer is not on the device".to_owned());
        let (_, start) = self.places.get(&Arc::as_ptr(source).addr()).ok_or_else(none)?;
        let mut there = 0;
        for (piece, at) in content.pieces().into_iter().zip([start + from, *start]) {
            if !piece.is_empty() {
                let to = buffer.slice(there..there + piece.len())?;
                stream.copy(&self.memory.slice(at..at + piece.len())?, &to)?;
                there += piece.len();
            }
        }
        repeat(stream, buffer, there)
    }
}
