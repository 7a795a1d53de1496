//! What cases' buffers are filled from, on the device: brought there by one copy for all cases,
//! since each copy from the host waits for whatever else is on its way to the device.

use super::placed::{aligned, content, repeat};
use kjit_engine::{DeviceBuffer, Error, Result, Stream};
use kjit_kernel_cases::{Case, Content};
use std::collections::HashMap;
use std::sync::Arc;

/// The bytes that buffers of some cases begin with, each once.
pub struct Sources {
    memory: DeviceBuffer<u8>,
    /// Where they lie, by the host's address: the bytes are held, so that no others get it.
    places: HashMap<usize, (Arc<Vec<u8>>, usize)>,
}

impl Sources {
    /// Those of cases.
    ///
    /// # Errors
    /// Memory that cannot be had; what the device says.
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

    /// Fills a buffer as it is to be.
    ///
    /// # Errors
    /// Of a case that is not one of these; what the device says.
    pub fn put(&self, stream: &Stream, content: &Content, buffer: &DeviceBuffer<u8>) -> Result<()> {
        if let Some(byte) = content.uniform() {
            return stream.fill(buffer, byte);
        }
        let (source, from) = content.source();
        let none = || Error::Buffer("what a buffer is filled from is not on the device".to_owned());
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
