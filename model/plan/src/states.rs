//! Lowers recurrent states: short convolutions, scans, linear attention. A sequence's state is in
//! its slot, like keys and values. At position 0 kernels do not read the memory, because the state
//! is zero.
//!
//! One kernel computes one token, one token of each of several sequences, or a prompt. For a
//! prompt it iterates over the tokens with its part of the state in registers.

use super::arena::ALIGN;
use super::fuse::Decay;
use super::lower::Lower;
use super::map::function_of;
use super::{Bind, Control, Dim, ONE, PlanError, TOKENS};
use crate::error::unsupported;
use kjit_graph::op::{Conv, LinearAttention, Repeat, Scan};
use kjit_graph::{StateId, StateKind, ValueId};
use kjit_kernels::conv::{ConvArgs, ConvSpec};
use kjit_kernels::decay::{DecayArgs, DecaySpec};
use kjit_kernels::linear::{LinearArgs, LinearSpec};
use kjit_kernels::scan::{ScanArgs, ScanSpec};

/// Bytes of `elems` f32 elements in a slot.
pub(super) fn recurrent_bytes(elems: usize) -> u64 {
    (4 * elems as u64).next_multiple_of(ALIGN)
}

impl Lower<'_> {
    /// Elements of a value's row.
    fn width(&self, v: ValueId) -> usize {
        let value = self.graph.value(v);
        value.slots * value.width
    }

    /// Elements of a state, and the bytes from one slot to the next.
    fn recurrent(&self, name: &str, state: StateId) -> Result<(usize, Bind), PlanError> {
        match self.graph.state(state).kind {
            StateKind::Recurrent { elems } => Ok((elems, Bind::U64(recurrent_bytes(elems)))),
            _ => Err(unsupported(name, "its state is not recurrent")),
        }
    }

    /// The grid over sequences: one block row for each.
    fn sequences(&self) -> Dim {
        if self.batch { TOKENS } else { ONE }
    }

    pub(super) fn conv(&mut self, conv: &Conv, silu: bool, out: ValueId) -> Result<(), PlanError> {
        let &Conv { x, weight, bias, state, .. } = conv;
        let spec = ConvSpec {
            channels: self.width(x),
            taps: self.graph.weight(weight).cols,
            weights: true,
            bias: bias.is_some(),
            silu,
            one: !self.batch,
        };
        let w = self.vector(weight);
        let b = bias.map_or(Bind::Null, |b| self.vector(b));
        self.convolve(spec, [w, b], x, state, out)
    }

    /// The previous token is the older of two taps.
    pub(super) fn shift(
        &mut self,
        x: ValueId,
        state: StateId,
        out: ValueId,
    ) -> Result<(), PlanError> {
        let (channels, one) = (self.width(x), !self.batch);
        let spec = ConvSpec { channels, taps: 2, weights: false, bias: false, silu: false, one };
        self.convolve(spec, [Bind::Null; 2], x, state, out)
    }

    fn convolve(
        &mut self,
        spec: ConvSpec,
        [w, b]: [Bind; 2],
        x: ValueId,
        state: StateId,
        out: ValueId,
    ) -> Result<(), PlanError> {
        let name = self.graph.value(out).name.clone();
        let job = self.job(&name, spec.clone())?;
        let (elems, sequence_bytes) = self.recurrent(&name, state)?;
        if elems != spec.state() {
            return Err(unsupported(&name, "its state has a wrong size"));
        }
        let rows = if self.batch { TOKENS } else { Dim::Tokens { per: ConvSpec::SLAB, each: 1 } };
        let args = ConvArgs {
            x: self.value(x)?,
            w,
            b,
            slots: self.slots(),
            position: Bind::Control(Control::Position),
            state: Bind::Keys(state),
            y: self.program.make(out),
            tokens: Bind::Dim(TOKENS),
            sequence_bytes,
        };
        self.run(name, &job, [Dim::Is(spec.blocks()), rows, ONE], args);
        Ok(())
    }

    pub(super) fn scan(&mut self, scan: &Scan) -> Result<(), PlanError> {
        let &Scan { x, dt, b, c, a, d, state, out } = scan;
        let name = self.graph.value(out).name.clone();
        let (elems, sequence_bytes) = self.recurrent(&name, state)?;
        let (heads, width, rates) =
            (self.width(dt).max(1), self.width(x), self.graph.weight(a).elems());
        let n = elems / width.max(1);
        let spec = ScanSpec {
            heads,
            channels: width / heads,
            n,
            groups: self.width(b) / n.max(1),
            each: rates != heads,
            one: !self.batch,
        };
        let job = self.job(&name, spec.clone())?;
        if spec.state() != elems || spec.each && rates != heads * n {
            return Err(unsupported(&name, "its state has a wrong size"));
        }
        let [a, d] = [a, d].map(|w| self.vector(w));
        let args = ScanArgs {
            x: self.value(x)?,
            dt: self.value(dt)?,
            b: self.value(b)?,
            c: self.value(c)?,
            a,
            d,
            slots: self.slots(),
            position: Bind::Control(Control::Position),
            state: Bind::Keys(state),
            y: self.program.make(out),
            tokens: Bind::Dim(TOKENS),
            sequence_bytes,
        };
        self.run(name, &job, [Dim::Is(spec.blocks()), self.sequences(), ONE], args);
        Ok(())
    }

    pub(super) fn linear(&mut self, linear: &LinearAttention) -> Result<(), PlanError> {
        let &LinearAttention { q, k, v, w, correction, bonus, heads, state, out } = linear;
        let name = self.graph.value(out).name.clone();
        let (elems, sequence_bytes) = self.recurrent(&name, state)?;
        let each = |v: ValueId| self.width(v) / heads.max(1);
        let spec = LinearSpec {
            heads,
            keys: each(k),
            values: each(v),
            each: each(w) != 1,
            corrected: correction.is_some(),
            bonus: bonus.is_some(),
            one: !self.batch,
        };
        if spec.state() != elems || spec.each && each(w) != spec.keys {
            return Err(unsupported(&name, "its state has a wrong size"));
        }
        let job = self.job(&name, spec.clone())?;
        let value = |v: Option<ValueId>| v.map_or(Ok(Bind::Null), |v| self.value(v));
        let (a, b) = correction.unzip();
        let (a, b) = (value(a)?, value(b)?);
        let args = LinearArgs {
            q: self.value(q)?,
            k: self.value(k)?,
            v: self.value(v)?,
            w: self.value(w)?,
            a,
            b,
            u: bonus.map_or(Bind::Null, |u| self.vector(u)),
            slots: self.slots(),
            position: Bind::Control(Control::Position),
            state: Bind::Keys(state),
            y: self.program.make(out),
            tokens: Bind::Dim(TOKENS),
            sequence_bytes,
        };
        self.run(name, &job, [Dim::Is(spec.blocks()), self.sequences(), ONE], args);
        Ok(())
    }

    /// The decay of a state.
    pub(super) fn decay(&mut self, decay: &Decay) -> Result<(), PlanError> {
        let &Decay { x, offsets, act, scale, factors, each, out } = decay;
        let name = self.graph.value(out).name.clone();
        let function = function_of(act).map(|(function, _)| function);
        let spec = DecaySpec {
            cols: self.width(x),
            function: function.ok_or_else(|| {
                unsupported(&name, format!("no kernel supports its activation {act:?}"))
            })?,
            factors: factors.map_or(0, |w| self.graph.weight(w).elems()),
            each,
            offsets: offsets.is_some(),
        };
        let job = self.job(&name, spec.clone())?;
        let [a, b] = [factors, offsets].map(|w| w.map_or(Bind::Null, |w| self.vector(w)));
        let args =
            DecayArgs { x: self.value(x)?, a, b, y: self.program.make(out), p: Bind::F32(scale) };
        self.run(name, &job, [Dim::Is(spec.blocks()), TOKENS, ONE], args);
        Ok(())
    }

    /// Repeats runs of a row by joining them `times - 1` times.
    pub(super) fn repeat(&mut self, repeat: &Repeat) -> Result<(), PlanError> {
        let &Repeat { x, heads, times, tiled, out } = repeat;
        let (width, runs) = (self.width(x), if tiled { 1 } else { heads });
        let name = self.graph.value(out).name.clone();
        let one = self.value(x)?;
        let mut so_far = one;
        for n in 1..times {
            let bytes = 4 * u64::from(self.program.tokens()) * (width * (n + 1)) as u64;
            let last = n + 1 == times;
            let y = if last {
                self.program.make(out)
            } else {
                self.program.scratch(format!("{name}.{n}"), bytes)
            };
            self.join(
                &format!("{name}.{n}"),
                [so_far, one],
                [width * n / runs, width / runs],
                runs,
                y,
            )?;
            so_far = y;
        }
        Ok(())
    }
}
