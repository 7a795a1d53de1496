//! The control words of slots on the device: token ids, positions, sampling options and
//! adjustments.

use super::GpuRunner;
use crate::loaded_plan::NONE;
use crate::plan::Choice;
use kjit_exec::{CHOSEN, SampleOptions, Sampler, SessionError};
use kjit_kernels::changes::{self, HEAD, MOST};
use kjit_kernels::noise::inverse;

/// The state of a slot's control words, as far as the host knows it.
#[derive(Debug, Clone, Default)]
pub(super) struct SlotWords {
    /// The device's position; `None` if unknown.
    pub(super) at: Option<usize>,
    /// Ring words from this index on are [`NONE`].
    pub(super) used: usize,
    /// The options on the device, as bits.
    pub(super) options: Option<[u32; 4]>,
    /// The seed on the device.
    pub(super) seed: Option<u64>,
    /// Whether its adjustment list may have entries.
    pub(super) adjusted: bool,
    /// Tokens in its recurrent states; `None` if unknown.
    pub(super) held: Option<usize>,
}

/// The device's format of a sampler's options.
pub(super) fn choice_of(o: &SampleOptions) -> Choice {
    if o.temperature <= 0.0 {
        return Choice::Greedy;
    }
    let top_k = u32::try_from(o.top_k).unwrap_or(u32::MAX);
    Choice::Draw { top_k, inverse: inverse(o.temperature), top_p: o.top_p, min_p: o.min_p }
}

/// A slot's options as bits; greedy is top-k 1.
fn bits_of(choice: Choice) -> [u32; 4] {
    match choice {
        Choice::Greedy => [1, 1f32.to_bits(), 1f32.to_bits(), 0f32.to_bits()],
        Choice::Draw { top_k, inverse, top_p, min_p } => {
            [top_k, inverse.to_bits(), top_p.to_bits(), min_p.to_bits()]
        }
    }
}

impl GpuRunner {
    pub(super) fn slot(&self, slot: usize) -> SlotWords {
        self.slots.get(slot).cloned().unwrap_or_default()
    }

    pub(super) fn note(&mut self, slot: usize, change: impl FnOnce(&mut SlotWords)) {
        if let Some(s) = self.slots.get_mut(slot) {
            change(s);
        }
    }

    /// Writes ids after the first tokens of a sequence and clears the later words, so that the host
    /// can recognise tokens that the device has chosen.
    pub(super) fn put(
        &mut self,
        slot: usize,
        first: usize,
        tokens: &[u32],
    ) -> Result<(), SessionError> {
        if tokens == [CHOSEN] {
            return Ok(());
        }
        let (ring, end) = (slot * (self.context + 1), first + tokens.len());
        let used = self.slot(slot).used.max(end);
        let ids = &self.loaded.control.tokens;
        // The ring already contains a token that the device chose. Writing it again would wait for
        // the device.
        let there = matches!(*tokens, [id] if used == end && ids.peek(ring + first)? == id);
        if !there && self.ahead.launching {
            // Launched steps use no word of this slot from here on.
            let words = tokens.iter().copied().chain(std::iter::repeat(NONE));
            for (at, word) in (ring + first..ring + used).zip(words) {
                ids.poke(at, word)?;
            }
        } else if !there {
            ids.slice(ring + first..ring + used)?.write(|to| {
                let (ids, rest) = to.split_at_mut(tokens.len().min(to.len()));
                ids.copy_from_slice(tokens);
                rest.fill(NONE);
            })?;
        }
        self.note(slot, |s| s.used = end);
        Ok(())
    }

    /// Sets a sequence's position, in stream order.
    pub(super) fn move_to(&mut self, slot: usize, position: usize) -> Result<(), SessionError> {
        if self.slot(slot).at != Some(position) {
            let r = &self.loaded;
            let number = r.control.numbers.slice(position..position + 1)?;
            r.stream.copy_in(&number, &r.control.position.slice(slot..slot + 1)?)?;
            self.note(slot, |s| s.at = Some(position));
        }
        Ok(())
    }

    /// Sets the slots of the next rows, in stream order.
    pub(super) fn list(&mut self, slots: &[usize]) -> Result<(), SessionError> {
        if self.loaded.plan.batches.is_empty() || self.listed == slots {
            return Ok(());
        }
        self.listed.clear();
        self.rows.rotate_left(1);
        let [rows, ..] = &self.rows;
        rows.write(|to| to.iter_mut().zip(slots).for_each(|(row, slot)| *row = *slot as u32))?;
        let to = self.loaded.control.slots.slice(..slots.len())?;
        self.loaded.stream.copy_in(&rows.slice(..slots.len())?, &to)?;
        self.listed.extend_from_slice(slots);
        Ok(())
    }

    /// Sets a sequence's sampling options and seed.
    pub(super) fn put_options(
        &mut self,
        slot: usize,
        o: &SampleOptions,
    ) -> Result<(), SessionError> {
        let choice = choice_of(o);
        self.put_bits(slot, choice)?;
        if choice != Choice::Greedy && self.slot(slot).seed != Some(o.seed) {
            let r = &self.loaded;
            let to = r.control.seeds.slice(slot..slot + 1)?;
            let (_, staged) = &self.staged;
            if self.ahead.launching {
                staged.poke(slot, o.seed)?;
                r.stream.copy_in(&staged.slice(slot..slot + 1)?, &to)?;
            } else {
                r.stream.write(&to, &[o.seed])?;
            }
            self.note(slot, |s| s.seed = Some(o.seed));
        }
        Ok(())
    }

    /// Sets a slot's sampling options.
    pub(super) fn put_bits(&mut self, slot: usize, choice: Choice) -> Result<(), SessionError> {
        let bits = bits_of(choice);
        if self.slot(slot).options != Some(bits) {
            let r = &self.loaded;
            let to = r.control.options.slice(slot..slot + 1)?;
            let (staged, _) = &self.staged;
            if self.ahead.launching {
                staged.poke(slot, bits)?;
                r.stream.copy_in(&staged.slice(slot..slot + 1)?, &to)?;
            } else {
                r.stream.write(&to, &[bits])?;
            }
            self.note(slot, |s| s.options = Some(bits));
        }
        Ok(())
    }

    /// Sets the factor of each adapter of a slot, in stream order.
    pub(super) fn put_factors(&self, slot: usize, factors: &[f32]) -> Result<(), SessionError> {
        let n = self.graph.adapters.len();
        if n > 0 {
            let r = &self.loaded;
            r.stream.write(&r.control.adapters.slice(slot * n..(slot + 1) * n)?, factors)?;
        }
        Ok(())
    }

    /// Sets or removes the adjustments of a slot's logits.
    pub(super) fn put_adjustments(
        &mut self,
        slot: usize,
        sampler: Option<&Sampler>,
    ) -> Result<(), SessionError> {
        let none = || {
            SessionError::Device("more adjustments of logits than a slot's list holds".to_owned())
        };
        let (n_vocab, stride) = (self.graph.n_vocab(), changes::stride(self.graph.n_vocab()));
        let first = slot * stride;
        let Some(sampler) = sampler else {
            if self.slot(slot).adjusted {
                let r = &self.loaded;
                r.stream.write(&r.control.adjustments.slice(first..first + HEAD)?, &[0; HEAD])?;
                self.note(slot, |s| s.adjusted = false);
            }
            return Ok(());
        };
        let entries = sampler.adjustments(n_vocab, MOST).ok_or_else(none)?;
        let (mask, repeat) = (sampler.mask_words(), sampler.options().repeat_penalty);
        let r = &self.loaded;
        let words = changes::words(&entries, mask.is_some(), repeat);
        r.stream.write(&r.control.adjustments.slice(first..first + words.len())?, &words)?;
        if let Some(mask) = mask {
            let mut halves: Vec<u32> =
                mask.iter().flat_map(|w| [*w as u32, (*w >> 32) as u32]).collect();
            halves.resize(changes::mask(n_vocab), 0);
            let first = first + HEAD + 4 * MOST;
            r.stream.write(&r.control.adjustments.slice(first..first + halves.len())?, &halves)?;
        }
        self.note(slot, |s| s.adjusted = true);
        Ok(())
    }

    /// Marks the states of these slots as unknown after a failed call.
    pub(super) fn doubt(&mut self, slots: &[usize]) {
        self.listed.clear();
        self.ahead.unsettled = true;
        let used = self.context + 1;
        slots.iter().for_each(|&slot| {
            self.note(slot, |s| *s = SlotWords { used, adjusted: true, ..SlotWords::default() })
        });
    }
}
