//! A wave: its registers, their undefined bits, and its outstanding operations.

use crate::facts::Facts;
use crate::hazard::Hazards;
use crate::memory::{Access, Memory};
use crate::operand::{ACC, EXEC, M0, NULL, Operand, SCALARS, VCC};
use crate::scratch::LaneMemory;
use crate::span::Span;
use crate::target::{COUNTERS, Counter, Event, Target};
use crate::unsupported::Unsupported;
use crate::width::LANES;
use std::collections::VecDeque;

/// A vector register.
#[derive(Clone, Debug)]
pub struct Register {
    /// Value of each lane.
    pub value: [u32; LANES],
    /// Undefined bits of each lane.
    pub bad: [u32; LANES],
    /// Lanes that have undefined bits.
    pub any: u64,
}

impl Register {
    /// Sets a lane.
    pub fn set(&mut self, lane: usize, value: u32, bad: u32) {
        self.value[lane] = value;
        self.bad[lane] = bad;
        self.any = self.any & !(1 << lane) | u64::from(bad != 0) << lane;
    }
}

/// An outstanding operation.
#[derive(Clone, Debug)]
pub struct OutstandingOp {
    event: Event,
    into: Option<Span>,
    number: u32,
    upto: Vec<(u32, u32)>,
}

/// The state of a wave between two instructions.
#[derive(Debug)]
pub struct Wave {
    /// Number of the wave in the launch.
    pub number: u32,
    /// Number of the wave in its block.
    pub in_block: u16,
    /// The mask with one bit for each lane of the wave.
    pub full: u64,
    vector: Vec<Register>,
    acc: Vec<Register>,
    /// Scalar registers.
    pub scalar: [u32; SCALARS],
    /// Undefined bits of the scalar registers.
    pub scalar_bad: [u32; SCALARS],
    /// SCC.
    pub scc: bool,
    /// Whether SCC is undefined.
    pub scc_bad: bool,
    /// Address of the next instruction.
    pub pc: u64,
    /// Number of barriers that the wave has passed.
    pub phase: u32,
    /// Whether the wave is between s_barrier_signal and s_barrier_wait.
    pub signalled: bool,
    /// Number of LDS operations so far, and of complete ones.
    pub lds_issued: u32,
    lds_done: u32,
    /// The time when the nearest cache was last invalidated.
    pub near: u64,
    /// gfx8: whether the mode flushes subnormal f32. Code switches it around divisions.
    pub flushes: bool,
    /// Scratch memory.
    pub scratch: LaneMemory,
    /// gfx1250: the upper bits of register numbers.
    pub windows: u8,
    asked: [VecDeque<OutstandingOp>; COUNTERS],
    pending_vector: Vec<u8>,
    pending_scalar: [u8; SCALARS],
    pending: usize,
    hazards: Hazards,
    target: Target,
}

impl Wave {
    /// A wave in which only EXEC is defined. `random` fills the registers.
    pub fn new(
        target: &Target,
        number: u32,
        in_block: u16,
        registers: usize,
        mut random: impl FnMut() -> u32,
    ) -> Wave {
        let full = if target.wave == 64 { u64::MAX } else { (1 << target.wave) - 1 };
        let mut register = || Register {
            value: std::array::from_fn(|_| random()),
            bad: [u32::MAX; LANES],
            any: full,
        };
        // gfx1250 uses registers from 256 on where other families have accumulation registers.
        let (low, high) = if target.has_acc() {
            (registers, 256)
        } else {
            (registers.min(usize::from(ACC)), registers.saturating_sub(usize::from(ACC)))
        };
        let vector: Vec<Register> = (0..low).map(|_| register()).collect();
        let acc: Vec<Register> = (0..high).map(|_| register()).collect();
        let mut scalar = [0; SCALARS];
        scalar.iter_mut().for_each(|s| *s = random());
        let mut wave = Wave {
            number,
            in_block,
            full,
            vector,
            acc,
            scalar,
            scalar_bad: [u32::MAX; SCALARS],
            scc: random() & 1 == 1,
            scc_bad: true,
            pc: 0,
            phase: 0,
            signalled: false,
            lds_issued: 0,
            lds_done: 0,
            near: 0,
            flushes: target.flushes,
            scratch: LaneMemory::default(),
            windows: 0,
            asked: Default::default(),
            pending_vector: vec![0; 1024],
            pending_scalar: [0; SCALARS],
            pending: 0,
            hazards: Hazards::new(target),
            target: target.clone(),
        };
        wave.set_scalar(EXEC, full as u32, 0);
        wave.set_scalar(EXEC + 1, (full >> 32) as u32, 0);
        wave.set_scalar(NULL, 0, 0);
        wave
    }

    /// The mask of lanes that EXEC enables.
    pub fn exec(&self) -> u64 {
        self.pair(EXEC).0 & self.full
    }

    /// A vector register.
    pub fn register(&self, n: u16) -> &Register {
        if n >= ACC { &self.acc[usize::from(n - ACC)] } else { &self.vector[usize::from(n)] }
    }

    /// A vector register for writing.
    pub fn register_mut(&mut self, n: u16) -> &mut Register {
        if n >= ACC {
            &mut self.acc[usize::from(n - ACC)]
        } else {
            &mut self.vector[usize::from(n)]
        }
    }

    /// Sets a scalar register. Writes to NULL are dropped.
    pub fn set_scalar(&mut self, n: u16, value: u32, bad: u32) {
        let null = n == NULL;
        self.scalar[usize::from(n)] = if null { 0 } else { value };
        self.scalar_bad[usize::from(n)] = if null { 0 } else { bad };
    }

    /// Two scalar registers as 64 bits: value and undefined bits.
    pub fn pair(&self, n: u16) -> (u64, u64) {
        let at = |s: &[u32; SCALARS]| {
            let low = u64::from(s[usize::from(n)]);
            if n == NULL { low } else { low | u64::from(s[usize::from(n) + 1]) << 32 }
        };
        (at(&self.scalar), at(&self.scalar_bad))
    }

    /// Sets two scalar registers.
    pub fn set_pair(&mut self, n: u16, value: u64, bad: u64) {
        self.set_scalar(n, value as u32, bad as u32);
        if n != NULL {
            self.set_scalar(n + 1, (value >> 32) as u32, (bad >> 32) as u32);
        }
    }

    /// A mask with one bit for each lane: one register at wave 32, two at wave 64.
    pub fn mask(&self, n: u16) -> (u64, u64) {
        let (value, bad) = if self.target.wave == 64 {
            self.pair(n)
        } else {
            (u64::from(self.scalar[usize::from(n)]), u64::from(self.scalar_bad[usize::from(n)]))
        };
        (value & self.full, bad & self.full)
    }

    /// Sets a mask.
    pub fn set_mask(&mut self, n: u16, value: u64, bad: u64) {
        if self.target.wave == 64 {
            self.set_pair(n, value, bad);
        } else {
            self.set_scalar(n, value as u32, bad as u32);
        }
    }

    /// Number of lanes.
    pub fn lanes(&self) -> i64 {
        i64::from(self.target.wave)
    }

    /// gfx8: checks that M0, with which LDS instructions compare their addresses, is −1, as
    /// compilers set it.
    pub fn check_lds_limit(&self) -> Result<(), Unsupported> {
        let (limit, bad) = (self.scalar[usize::from(M0)], self.scalar_bad[usize::from(M0)]);
        match self.target.lds_limit() && (bad != 0 || limit != u32::MAX) {
            true if bad != 0 => Err("LDS with an undefined limit in M0".into()),
            true => Err(Unsupported { what: format!("LDS with the limit {limit}"), lane: None }),
            false => Ok(()),
        }
    }

    /// Checks that EXEC is defined. It must be defined at each change.
    pub fn check_exec(&self) -> Result<(), Unsupported> {
        match self.pair(EXEC).1 & self.full {
            0 => Ok(()),
            bad => Err(Unsupported {
                what: "EXEC depends on an undefined value".into(),
                lane: Some(bad.trailing_zeros()),
            }),
        }
    }

    /// Whether the mask that a branch tests (VCC or EXEC) is zero. The mask must be defined.
    pub fn is_zero(&self, n: u16) -> Result<bool, Unsupported> {
        let (value, bad) = self.mask(n);
        match (value & !bad, bad) {
            (0, 0) => Ok(true),
            (known, _) if known != 0 => Ok(false),
            _ => Err(format!(
                "a branch on {} that is undefined",
                if n == VCC { "VCC" } else { "EXEC" }
            )
            .into()),
        }
    }

    /// Describes a memory access by this wave.
    pub fn access(&self, bypass: bool) -> Access {
        Access {
            wave: self.number,
            phase: self.phase,
            near: self.near,
            bypass,
            scalar: false,
            load: 0,
        }
    }

    /// Checks that the instruction does not read or write a register with a load in flight.
    pub fn check_spans(&self, spans: &[Span]) -> Result<(), Unsupported> {
        for s in spans {
            let range = usize::from(s.first)..usize::from(s.first + s.count);
            if s.vector {
                let (file, from, kind) = if s.first >= ACC {
                    (self.acc.len(), usize::from(ACC), 'a')
                } else {
                    (self.vector.len(), 0, 'v')
                };
                if range.end - from > file {
                    return Err(format!(
                        "{kind}{} is not among the kernel's {file} registers",
                        range.end - from - 1
                    )
                    .into());
                }
                if self.pending != 0
                    && let Some(r) = range.clone().find(|&r| self.pending_vector[r] != 0)
                {
                    return Err(
                        format!("{kind}{} is used before a wait for its load", r - from).into()
                    );
                }
            } else if self.pending != 0
                && let Some(r) = range.clone().find(|&r| self.pending_scalar[r] != 0)
            {
                return Err(format!("s{r} is used before a wait for its load").into());
            }
        }
        Ok(())
    }

    /// [`check_spans`](Wave::check_spans) for a global load into the first span: earlier global
    /// loads into it are allowed if loads complete in order.
    pub fn check_load(&self, spans: &[Span]) -> Result<(), Unsupported> {
        let Some((into, others)) =
            spans.split_first().filter(|(s, _)| s.vector && self.target.loads_in_order())
        else {
            return self.check_spans(spans);
        };
        let range = usize::from(into.first)..usize::from(into.first + into.count);
        let loads = |r: usize| {
            let to = |s: Span| {
                s.vector && usize::from(s.first) <= r && r < usize::from(s.first + s.count)
            };
            let asked = self.asked[Counter::Load as usize].iter();
            asked.filter(|a| a.event == Event::Load && a.into.is_some_and(to)).count()
        };
        let pending = range.clone().any(|r| self.pending_vector[r] != 0);
        let in_order =
            pending && range.clone().all(|r| usize::from(self.pending_vector[r]) == loads(r));
        self.check_spans(if in_order { others } else { spans })
    }

    /// Fails if the next instruction comes before the hardware can execute it.
    pub fn check_hazards(&mut self, facts: &Facts) -> Result<(), Unsupported> {
        Ok(self.hazards.step(facts, self.vector.len())?)
    }

    fn mark(&mut self, span: Option<Span>, more: bool) {
        let Some(s) = span else { return };
        for r in usize::from(s.first)..usize::from(s.first + s.count) {
            let slot =
                if s.vector { &mut self.pending_vector[r] } else { &mut self.pending_scalar[r] };
            if more {
                *slot += 1;
                self.pending += 1;
            } else {
                *slot -= 1;
                self.pending -= 1;
            }
        }
    }

    /// Records an outstanding operation.
    pub fn ask(&mut self, event: Event, into: Option<Span>, number: u32, upto: Vec<(u32, u32)>) {
        self.mark(into, true);
        self.asked[self.target.counter(event) as usize].push_back(OutstandingOp {
            event,
            into,
            number,
            upto,
        });
    }

    /// Waits until at most `left` operations of the counter are outstanding. If operations complete
    /// in any order, they are only known to be complete when `left` is 0.
    pub fn wait(&mut self, counter: Counter, left: usize, memory: &mut Memory) {
        let mut queue = std::mem::take(&mut self.asked[counter as usize]);
        let mut done =
            queue.iter().filter(|a| a.event != Event::Scalar).count().saturating_sub(left);
        let mut rest = VecDeque::new();
        while let Some(a) = queue.pop_front() {
            let over = if a.event == Event::Scalar { left == 0 } else { done > 0 };
            if !over {
                rest.push_back(a);
                continue;
            }
            done -= usize::from(a.event != Event::Scalar);
            self.mark(a.into, false);
            match a.event {
                Event::Store => memory.arrived(self.number, a.number),
                Event::WriteBack => memory.end_write_back(&a.upto),
                Event::Lds => self.lds_done = a.number,
                Event::Load => memory.loaded(self.number, a.number),
                Event::Scalar => {}
            }
        }
        self.asked[counter as usize] = rest;
    }

    /// The number of complete LDS operations.
    pub fn lds_done(&self) -> u32 {
        self.lds_done
    }

    /// The value of an operand that is the same for the whole wave: a scalar register or a
    /// constant.
    pub fn read_scalar(&self, operand: Operand, wide: bool) -> Result<(u64, u64), Unsupported> {
        Ok(match operand {
            Operand::Scalar(n) if wide => self.pair(n),
            Operand::Scalar(n) => {
                (u64::from(self.scalar[usize::from(n)]), u64::from(self.scalar_bad[usize::from(n)]))
            }
            Operand::Constant(c) => (c, 0),
            Operand::Scc => (u64::from(self.scc), u64::from(self.scc_bad)),
            Operand::Vector(_) | Operand::Lane => {
                return Err("a vector register where a scalar one belongs".into());
            }
        })
    }
}
