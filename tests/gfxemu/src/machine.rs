//! A launch: runs its blocks and waves in an order that a seed chooses.

use crate::inst::{Inst, NextInstruction};
use crate::lds::Lds;
use crate::llvm::Disassembler;
use crate::memory::Memory;
use crate::object::Kernel;
use crate::operand::TTMP;
use crate::order::Writer;
use crate::random::Random;
use crate::region::Region;
use crate::scratch::LaneMemory;
use crate::target::Target;
use crate::wave::Wave;

/// The parameters of a launch, without its memory.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Number of blocks along x, y, z.
    pub grid: [u32; 3],
    /// Number of threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Bytes of LDS per block, static and dynamic.
    pub lds: usize,
    /// Whether all blocks are resident simultaneously.
    pub cooperative: bool,
    /// Address of the argument block.
    pub arguments: u64,
    /// Seed of the undefined bits and of the order of waves.
    pub seed: u64,
    /// Maximum number of instructions of all waves. A launch that exceeds it counts as hanging.
    pub limit: u64,
}

/// The reason why a launch failed.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The reason, with the location.
    pub what: String,
    /// The instruction as LLVM's text.
    pub instruction: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

struct Block {
    id: [u32; 3],
    lds: Lds,
    waves: Vec<(Wave, WaveState)>,
}

#[derive(Clone, Copy, PartialEq)]
enum WaveState {
    Ready,
    AtBarrier,
    Over,
}

/// A kernel for an architecture. Its instructions are decoded when they are first executed.
pub struct Machine {
    /// The architecture.
    pub target: Target,
    kernel: Kernel,
    base: u64,
    disassembler: Disassembler,
    decoded: Vec<Option<Box<Inst>>>,
    /// Number of executions of each instruction, in all runs.
    taken: Vec<u64>,
    /// Loose mode: the seed of the launch chooses when stores become visible, and memory rules are
    /// not checked. A missing wait changes the result for some seed.
    pub loose: bool,
    /// Code addresses of instructions that are skipped: a planted fault that a test must detect.
    pub skipped: Vec<u64>,
}

impl Machine {
    /// A machine for `kernel`, whose image is at the address `base`.
    pub fn new(mut target: Target, kernel: Kernel, base: u64) -> Result<Machine, String> {
        target.flushes = kernel.flushes;
        if kernel.flushes && target.generation != 8 {
            return Err("flushes subnormal f32, which is unknown except on gfx8".into());
        }
        let disassembler = Disassembler::new(&target.arch, target.wave)?;
        let decoded = vec![None; kernel.image.len() / 4];
        let taken = vec![0; decoded.len()];
        Ok(Machine {
            target,
            kernel,
            base,
            disassembler,
            decoded,
            taken,
            loose: false,
            skipped: Vec::new(),
        })
    }

    /// The address and the bytes of the code object's image.
    pub fn image(&self) -> (u64, &[u8]) {
        (self.base, &self.kernel.image)
    }

    /// Bytes of LDS that the kernel declares.
    pub fn static_lds(&self) -> usize {
        self.kernel.lds as usize
    }

    /// The instructions of the kernel with their addresses in the code object. The error explains
    /// why an instruction is unknown.
    pub fn listing(&self) -> Vec<(u64, Result<Inst, String>)> {
        let (mut at, mut windows, mut out) = (self.kernel.entry, 0, Vec::new());
        while at < self.kernel.code_end {
            let decoded = self.decode(at, windows);
            // Compilers set the mode again in each basic block.
            windows = decoded.as_ref().ok().and_then(Inst::sets_windows).unwrap_or(windows);
            let size = decoded.as_ref().map_or(4, |i| i.size);
            if decoded.as_ref().is_ok_and(|i| i.text.starts_with("s_code_end")) {
                break;
            }
            out.push((at, decoded));
            at += size;
        }
        out
    }

    /// Hazards after a matrix instruction on any path through the code, executed or not. One line
    /// for each hazard and for each unknown instruction.
    pub fn too_early(&self) -> Vec<String> {
        let registers = self.target.vector_registers(self.kernel.resources);
        crate::paths::too_early(&self.target, registers, self.listing())
    }

    /// Whether the instruction at an address of the code object was executed.
    pub fn executed(&self, at: u64) -> bool {
        self.decoded.get(at as usize / 4).is_some_and(Option::is_some)
    }

    /// The executed instructions of all runs, with their counts.
    pub fn profile(&self) -> impl Iterator<Item = (&str, u64)> {
        let both = self.decoded.iter().zip(&self.taken);
        both.filter_map(|(inst, n)| {
            Some((inst.as_ref()?.text.as_str(), *n)).filter(|(_, n)| *n > 0)
        })
    }

    fn decode(&self, at: u64, windows: u8) -> Result<Inst, String> {
        let code =
            self.kernel.image.get(at as usize..).ok_or_else(|| format!("no code at {at:#x}"))?;
        let (text, size) = self.disassembler.at(code, at)?;
        Inst::decode(&self.target, &text, at, size as u64, windows)
    }

    fn start(
        &self,
        launch: &Launch,
        id: [u32; 3],
        memory: &mut Memory,
        number: u32,
        random: &mut Random,
    ) -> Block {
        let threads = launch.block.iter().product::<u32>();
        let count = threads.div_ceil(self.target.wave);
        let first = memory.writers.len() as u32;
        let registers = self.target.vector_registers(self.kernel.resources);
        let waves = (0..count).map(|w| {
            let mut wave =
                Wave::new(&self.target, first + w, w as u16, registers, || random.draw() as u32);
            wave.pc = self.kernel.entry;
            wave.set_pair(self.kernel.argument_pointer, launch.arguments, 0);
            if self.target.generation == 12 {
                wave.set_scalar(TTMP + 9, id[0], 0);
                wave.set_scalar(TTMP + 7, id[1] | id[2] << 16, 0);
            } else {
                let axes = (0..3).filter(|a| self.kernel.block_ids[*a]);
                for (place, axis) in axes.enumerate() {
                    wave.set_scalar(self.kernel.user_registers + place as u16, id[axis], 0);
                }
            }
            if let Some(scratch) = &self.kernel.scratch {
                LaneMemory::begin(&mut wave, scratch, || random.draw() as u8);
            }
            let thread = w * self.target.wave;
            let lanes = (threads - thread).min(self.target.wave);
            let on = if lanes == 64 { u64::MAX } else { (1 << lanes) - 1 };
            wave.set_pair(crate::operand::EXEC, on, 0);
            for l in 0..self.target.wave {
                wave.register_mut(0).set(l as usize, thread + l, 0);
            }
            (wave, WaveState::Ready)
        });
        let waves: Vec<_> = waves.collect();
        memory.writers.resize_with(memory.writers.len() + count as usize, || Writer::of(number));
        let lds = Lds::new(launch.lds, count as usize, || random.draw() as u8);
        Block { id, lds, waves }
    }

    /// Runs the launch to its end. Returns the memory and the number of executed instructions.
    pub fn run(&mut self, launch: &Launch, regions: Vec<Region>) -> Result<(Memory, u64), Fault> {
        let [gx, gy, gz] = launch.grid;
        let blocks = (0..gz)
            .flat_map(|z| (0..gy).flat_map(move |y| (0..gx).map(move |x| [x, y, z])))
            .collect();
        self.run_blocks(launch, blocks, regions)
    }

    /// Runs only these blocks of the launch. They must not wait for other blocks.
    pub fn run_blocks(
        &mut self,
        launch: &Launch,
        mut waiting: Vec<[u32; 3]>,
        regions: Vec<Region>,
    ) -> Result<(Memory, u64), Fault> {
        let mut random = Random::new(launch.seed);
        let mut memory = Memory::new(regions, &self.target, self.kernel.resources);
        if self.loose {
            memory.choose_order(launch.seed);
        }
        for i in (1..waiting.len()).rev() {
            waiting.swap(i, random.below(i + 1));
        }
        let together = if launch.cooperative { waiting.len() } else { 3 };
        let (mut live, mut begun, mut total): (Vec<Block>, u32, u64) = (Vec::new(), 0, 0);
        loop {
            while live.len() < together
                && let Some(id) = waiting.pop()
            {
                live.push(self.start(launch, id, &mut memory, begun, &mut random));
                begun += 1;
            }
            if live.is_empty() {
                memory.finish();
                return Ok((memory, total));
            }
            let which = random.below(live.len());
            let block = &mut live[which];
            let ready: Vec<usize> =
                (0..block.waves.len()).filter(|&w| block.waves[w].1 == WaveState::Ready).collect();
            let w = ready[random.below(ready.len())];
            // The seed chooses after how many instructions another wave runs.
            let turns =
                if self.loose { [1, 3, 60, 5000] } else { [7, 60, 500, 5000] }[random.below(4)];
            total += self.turn(block, w, turns, &mut memory)?;
            if random.below(2) == 0 {
                memory.land_one(|n| random.below(n));
            }
            if total > launch.limit {
                let what = format!("the launch hangs: {total} instructions so far");
                return Err(Fault { what, instruction: String::new() });
            }
            if block.waves.iter().all(|(_, s)| *s != WaveState::Ready) {
                for (wave, state) in &mut block.waves {
                    if *state == WaveState::AtBarrier {
                        *state = WaveState::Ready;
                        wave.phase += 1;
                    }
                }
            }
            if live[which].waves.iter().all(|(_, s)| *s == WaveState::Over) {
                live.swap_remove(which);
            }
        }
    }

    /// Executes up to `turns` instructions of a wave.
    fn turn(
        &mut self,
        block: &mut Block,
        w: usize,
        turns: u64,
        memory: &mut Memory,
    ) -> Result<u64, Fault> {
        let (wave, state) = &mut block.waves[w];
        for done in 1..=turns {
            let pc = wave.pc;
            let slot = pc as usize / 4;
            let there = self.decoded.get(slot).and_then(Option::as_ref);
            if there.is_none_or(|inst| inst.windows != wave.windows) {
                let inst = self
                    .decode(pc, wave.windows)
                    .map_err(|what| Fault { instruction: what.clone(), what })?;
                self.decoded[slot] = Some(Box::new(inst));
            }
            self.taken[slot] += 1;
            let Some(inst) = &self.decoded[slot] else { unreachable!("it was put there") };
            let next = if self.skipped.contains(&pc) {
                Ok(NextInstruction::On)
            } else {
                inst.run(self.base + pc, wave, &mut block.lds, memory)
            };
            let next = next.map_err(|why| Fault {
                what: format!(
                    "{} at {pc:#x}, block {:?}, wave {w}{}: {}",
                    inst.text.replace('\t', " "),
                    block.id,
                    why.lane.map_or(String::new(), |l| format!(", lane {l}")),
                    why.what
                ),
                instruction: inst.text.clone(),
            })?;
            wave.pc = match next {
                NextInstruction::Jump(to) => to,
                NextInstruction::Call(to) => to.wrapping_sub(self.base),
                _ => pc + inst.size,
            };
            match next {
                NextInstruction::Barrier => *state = WaveState::AtBarrier,
                NextInstruction::End => *state = WaveState::Over,
                _ => continue,
            }
            return Ok(done);
        }
        Ok(turns)
    }
}
