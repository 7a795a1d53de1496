//! Decoding side by side, with the choice of every token on the device.

use super::super::executor::AHEAD;
use super::super::plan::Choice;
use super::super::resident::Whose;
use super::{After, GpuBatch, Slot, Start};
use crate::exec::ExecError;
use crate::sample::SampleOptions;

/// What is drawn where a slot's own options say how.
const DRAW: Choice = Choice::Draw { top_k: 1, temperature: 1.0, top_p: 1.0, min_p: 0.0 };

/// How far a sequence is.
struct Running {
    slot: usize,
    /// Position of the token that the next step feeds.
    next: usize,
    /// Position of the token that is handed out next.
    read: usize,
    /// Tokens handed out.
    taken: usize,
    /// It takes part in steps.
    live: bool,
}

impl Running {
    /// Steps that were launched and whose token was not handed out.
    fn ahead(&self) -> usize {
        (self.next + 1).saturating_sub(self.read)
    }
}

/// The bits of a slot's options; greedy is the likeliest one.
fn options_of(o: &SampleOptions) -> [u32; 4] {
    if o.temperature <= 0.0 {
        return [1, 1f32.to_bits(), 1f32.to_bits(), 0f32.to_bits()];
    }
    let top_k = u32::try_from(o.top_k).unwrap_or(u32::MAX);
    [top_k, o.temperature.to_bits(), o.top_p.to_bits(), o.min_p.to_bits()]
}

impl GpuBatch {
    /// Feeds each sequence's tokens, then chooses, hands each token to `sink` and feeds it, until the sink ends every sequence, pauses, or
    /// their contexts are full. The token after which a sequence ends or pauses is not fed: to go on, start again with it. The
    /// device runs ahead of the sink; what it fed too much is forgotten.
    ///
    /// # Errors
    /// As [`GpuBatch::feed`]; a slot named twice, no tokens for one, penalties.
    pub fn decode(
        &mut self,
        starts: &mut [Start<'_>],
        sink: &mut dyn FnMut(Slot, u32) -> After,
    ) -> Result<(), ExecError> {
        self.check_all(starts.iter().map(|s| (s.slot, s.tokens)))?;
        let mut draw = false;
        for o in starts.iter().map(|s| s.sampler.options()) {
            if o.repeat_penalty != 1.0 || o.presence_penalty != 0.0 || o.frequency_penalty != 0.0 {
                let why = "penalties are not covered for sequences side by side: decode this one alone";
                return Err(ExecError::Device(why.to_owned()));
            }
            draw |= o.temperature > 0.0;
        }
        let mut running = vec![];
        for s in starts.iter() {
            self.prepare(s.slot, s.tokens, true)?;
            let last = self.len(s.slot)? + s.tokens.len() - 1;
            if draw {
                self.put_options(s, last)?;
            }
            running.push(Running { slot: s.slot.0, next: last, read: last + 1, taken: 0, live: true });
        }
        let result = self.steps(&mut running, starts, draw, sink);
        for (s, r) in starts.iter_mut().zip(&running).filter(|(s, _)| s.sampler.options().temperature > 0.0) {
            s.sampler.skip(r.taken);
        }
        result
    }

    /// How a sequence's tokens are chosen, and the random numbers for it, from the position of its last token on.
    fn put_options(&self, start: &Start<'_>, last: usize) -> Result<(), ExecError> {
        let (r, slot) = (&self.resident, start.slot.0);
        let options = options_of(start.sampler.options());
        r.stream.write(&r.control.options.slice(slot..slot + 1)?, &[options])?;
        let first = slot * (self.context + 1);
        let place = r.control.fractions.slice(first + last..first + self.context)?;
        Ok(r.stream.write(&place, &start.sampler.fractions(self.context - last))?)
    }

    /// Steps until nobody goes on.
    fn steps(
        &mut self,
        running: &mut [Running],
        starts: &mut [Start<'_>],
        draw: bool,
        sink: &mut dyn FnMut(Slot, u32) -> After,
    ) -> Result<(), ExecError> {
        let (context, words) = (self.context, self.context + 1);
        // The sequences in the device's list; zero: it must be written anew.
        let mut listed = 0;
        loop {
            while running.iter().any(|r| r.live) && running.iter().filter(|r| r.live).all(|r| r.ahead() < AHEAD) {
                // A sequence whose context is full waits for its last token, and takes no more steps.
                for r in running.iter_mut().filter(|r| r.live && r.next == context) {
                    (r.live, listed) = (false, 0);
                }
                let n = running.iter().filter(|r| r.live).count();
                if n == 0 {
                    break;
                }
                if listed != n {
                    self.set_rows(running.iter().filter(|r| r.live).map(|r| r.slot))?;
                    self.record(n, draw)?;
                    listed = n;
                }
                if let Some(chain) = self.chains.get(&(n, draw)) {
                    self.resident.stream.replay(chain)?;
                }
                running.iter_mut().filter(|r| r.live).for_each(|r| r.next += 1);
            }
            let mut any = false;
            for (r, start) in running.iter_mut().zip(starts.iter_mut()).filter(|(r, _)| r.ahead() > 0) {
                let token = self.resident.wait_for(r.slot * words + r.read)?;
                any = true;
                if let Some(len) = self.lens.get_mut(r.slot) {
                    *len = Some(r.read);
                }
                (r.read, r.taken) = (r.read + 1, r.taken + 1);
                start.sampler.accept(token);
                match sink(start.slot, token) {
                    After::Go => {}
                    After::Pause => return Ok(()),
                    After::End => {
                        // What was launched for it is nobody's.
                        (r.live, r.next, listed) = (false, r.read - 1, 0);
                    }
                }
            }
            if !any {
                return Ok(());
            }
        }
    }

    /// Records the launches of a step for so many sequences, unless that was done.
    fn record(&mut self, n: usize, draw: bool) -> Result<(), ExecError> {
        if self.chains.contains_key(&(n, draw)) {
            return Ok(());
        }
        let (batch, now) = self.program(n, if draw { DRAW } else { Choice::Greedy })?;
        let (r, choice) = (&self.resident, if draw { &batch.draw } else { &batch.greedy });
        let recording = r.stream.capture(|| {
            r.issue(&batch.program, &batch.program.launches, &now, Whose::All)?;
            r.launch(&batch.program, choice, &now, Whose::All)
        })?;
        self.chains.insert((n, draw), recording);
        Ok(())
    }
}
