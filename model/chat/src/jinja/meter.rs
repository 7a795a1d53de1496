//! Counts the steps and the live bytes of a run.

use std::cell::Cell;
use std::rc::Rc;

use super::fault::{Fault, limit};
use kjit_tokenizer::cancel::Cancel;

/// Maximum number of steps of one rendering. That many steps take at most one second. Llama 3.1's
/// template takes about 200 steps per message.
pub const FUEL: u64 = 10_000_000;

/// Maximum number of live bytes in the values of one rendering. Real allocations may be up to three
/// times as large while a string or a list grows.
pub const MAX_MEMORY: usize = 64 << 20;

/// Maximum number of bytes of output.
pub const MAX_OUTPUT: usize = 32 << 20;

/// The counters. All values of a run share them.
#[derive(Debug)]
pub struct Meter {
    live: Cell<usize>,
    fuel: Cell<u64>,
    cancel: Cancel,
}

impl Meter {
    pub fn new(cancel: &Cancel) -> Rc<Meter> {
        Rc::new(Meter { live: Cell::new(0), fuel: Cell::new(FUEL), cancel: cancel.clone() })
    }

    /// Counts steps.
    pub fn work(&self, steps: usize) -> Result<(), Fault> {
        if self.cancel.is_cancelled() {
            return limit("the request was cancelled");
        }
        match self.fuel.get().checked_sub(steps as u64) {
            Some(left) => {
                self.fuel.set(left);
                Ok(())
            }
            None => limit(format!("more than {FUEL} steps")),
        }
    }

    /// Counts the steps for processing this number of bytes.
    pub fn bytes(&self, bytes: usize) -> Result<(), Fault> {
        self.work(1 + bytes / 32)
    }

    /// Counts memory before it is allocated.
    pub fn take(&self, bytes: usize) -> Result<(), Fault> {
        let live = self.live.get().saturating_add(bytes);
        if live > MAX_MEMORY {
            return limit(format!("its values need more than {} MiB", MAX_MEMORY >> 20));
        }
        self.live.set(live);
        Ok(())
    }

    pub fn give_back(&self, bytes: usize) {
        self.live.set(self.live.get().saturating_sub(bytes));
    }
}

/// A value whose memory is counted until it is dropped.
#[derive(Debug)]
pub struct Metered<T> {
    value: T,
    bytes: usize,
    meter: Rc<Meter>,
}

impl<T> Metered<T> {
    /// Wraps a value whose bytes are already counted.
    pub fn taken(value: T, bytes: usize, meter: &Rc<Meter>) -> Rc<Metered<T>> {
        Rc::new(Metered { value, bytes, meter: meter.clone() })
    }
}

impl<T> std::ops::Deref for Metered<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Metered<T> {
    fn drop(&mut self) {
        self.meter.give_back(self.bytes);
    }
}

/// A growing string with counted memory.
#[derive(Debug)]
pub struct MeteredString {
    text: String,
    taken: usize,
    most: usize,
    /// Bytes that are not counted as steps yet.
    uncounted: usize,
    meter: Rc<Meter>,
}

impl MeteredString {
    pub fn new(meter: &Rc<Meter>) -> MeteredString {
        MeteredString {
            text: String::new(),
            taken: 0,
            most: usize::MAX,
            uncounted: 0,
            meter: meter.clone(),
        }
    }

    /// A string of up to [`MAX_OUTPUT`] bytes.
    pub fn output(meter: &Rc<Meter>) -> MeteredString {
        let mut out = MeteredString::new(meter);
        out.most = MAX_OUTPUT;
        out
    }

    pub fn push(&mut self, text: &str) -> Result<(), Fault> {
        self.reserve(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    pub fn push_char(&mut self, c: char) -> Result<(), Fault> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    pub fn repeat(&mut self, text: &str, times: usize) -> Result<(), Fault> {
        let bytes = text.len().saturating_mul(times);
        self.reserve(bytes)?;
        (0..times).for_each(|_| self.text.push_str(text));
        Ok(())
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), Fault> {
        if self.text.len().saturating_add(bytes) > self.most {
            return limit(format!("its output exceeds {} MiB", self.most >> 20));
        }
        self.uncounted = self.uncounted.saturating_add(bytes);
        self.meter.work(self.uncounted / 32)?;
        self.uncounted %= 32;
        self.meter.take(bytes)?;
        self.taken += bytes;
        Ok(())
    }

    /// Returns the string, and the bytes that are counted for it. The caller must return these
    /// bytes to the meter.
    pub fn finish(mut self) -> (String, usize) {
        (std::mem::take(&mut self.text), std::mem::take(&mut self.taken))
    }
}

impl MeteredString {
    /// A new empty string with the same meter.
    pub fn another(&self) -> MeteredString {
        MeteredString::new(&self.meter)
    }

    /// Returns the string without counting its memory. For short-lived strings.
    pub fn finish_uncounted(self) -> String {
        let meter = self.meter.clone();
        let (text, taken) = self.finish();
        meter.give_back(taken);
        text
    }
}

impl Drop for MeteredString {
    fn drop(&mut self) {
        self.meter.give_back(self.taken);
    }
}
