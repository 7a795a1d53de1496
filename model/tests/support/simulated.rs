//! Runs a plan on the simulated device: each launch in a separate process, with memory passed
//! through files. It is slow, but it shows that the plan binds the right arguments in the right
//! order.

use half::f16;
use kjit_engine::Target;
use kjit_kernels::heads::angles;
use kjit_kernels::layout::Layout;
use kjit_kernels::tuning::Shipped;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::plan::{
    Bind, Control, Dim, Launch, LaunchParams, Number, Plan, Program, Request, plan,
};
use kjit_model::graph::{Graph, ValueId, WeightId};
use kjit_model::session::OpenOptions;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The C++ compiler. If no file exists, a message is printed and the result is `None`.
pub fn compiler() -> Option<String> {
    let asked = std::env::var("CXX").ok();
    let names = asked.into_iter().chain(["g++", "clang++", "clang++-19"].map(String::from));
    let found = names
        .into_iter()
        .find(|c| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success()));
    if found.is_none() {
        eprintln!(
            "SKIPPED: no C++ compiler (CXX, g++, clang++), so nothing runs on the simulated device"
        );
    }
    found
}

const HIPSIM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/hipsim");
const RUNNER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernel_src/tests/sim/run.cpp");
const FLAGS: [&str; 4] = ["-std=c++17", "-O1", "-w", "-fno-strict-aliasing"];

fn compile(compiler: &str, folder: &Path, arguments: &[&str]) {
    let out = Command::new(compiler).args(arguments).current_dir(folder).output().unwrap();
    assert!(out.status.success(), "{}: {}", folder.display(), String::from_utf8_lossy(&out.stderr));
}

/// The folder `target/tmp` for files that tests keep between runs.
pub fn temporary() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.ancestors().nth(3).unwrap().join("tmp");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The program that runs the library of a kernel. The first test that needs it compiles it for all
/// tests.
fn runner(compiler: &str) -> PathBuf {
    let mut hash = DefaultHasher::new();
    compiler.hash(&mut hash);
    for file in [RUNNER, &format!("{HIPSIM}/exec.h"), &format!("{HIPSIM}/kernel.h")] {
        std::fs::read(file).unwrap().hash(&mut hash);
    }
    let folder = &temporary();
    let made = folder.join(format!("sim-run-{:016x}", hash.finish()));
    if !made.is_file() {
        let own = made.with_extension(std::process::id().to_string());
        let files = ["-pthread", "-o", own.to_str().unwrap(), RUNNER, "-ldl"];
        compile(compiler, folder, &[&FLAGS[..], &files].concat());
        std::fs::rename(own, &made).unwrap();
    }
    made
}

/// A model on the simulated device.
pub struct Machine<'a> {
    pub plan: Plan,
    graph: &'a Graph,
    folder: PathBuf,
    compiler: String,
    runner: PathBuf,
    built: HashMap<u32, PathBuf>,
    arena: Vec<u8>,
    matrices: HashMap<WeightId, Vec<u8>>,
    vectors: HashMap<WeightId, Vec<u8>>,
    ropes: Vec<Vec<u8>>,
    caches: Vec<(Vec<u8>, Vec<u8>)>,
    tokens: Vec<u8>,
    position: Vec<u8>,
    numbers: Vec<u8>,
    seed_of_draws: Vec<u8>,
    adapters: Vec<u8>,
    seed: u64,
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

impl<'a> Machine<'a> {
    /// Plans the model, keeps every stored value, and lays out the weights.
    pub fn new(
        gguf: &Gguf,
        graph: &'a Graph,
        arch: &str,
        options: &OpenOptions,
        folder: &Path,
        compiler: &str,
    ) -> Self {
        let target = Target::parse(arch).unwrap();
        let keep: Vec<ValueId> = (0..graph.values.len()).map(|i| ValueId(i as u32)).collect();
        let plan = plan(&Request { graph, target: &target, options, keep: &keep, tuned: &Shipped })
            .unwrap();
        std::fs::create_dir_all(folder).unwrap();
        let mut matrices = HashMap::new();
        for (id, _) in &plan.matrices {
            let w = graph.weight(*id);
            let layout = Layout::new(w.format, w.cols).unwrap();
            let raw = &gguf.tensor(&w.tensor).unwrap().data[w.bytes_of(w.at)..][..w.bytes()];
            let mut records = vec![0; layout.bytes(w.rows, w.experts).unwrap()];
            let row = w.format.row_bytes(w.cols).unwrap();
            for (raw, record) in
                raw.chunks_exact(row).zip(records.chunks_exact_mut(layout.row_bytes))
            {
                layout.repack_row(raw, record).unwrap();
            }
            matrices.insert(*id, records);
        }
        let vector = |id: WeightId| {
            let w = graph.weight(id);
            let mut out = vec![0.0; w.rows * w.cols];
            let raw = &gguf.tensor(&w.tensor).unwrap().data[w.bytes_of(w.at)..][..w.bytes()];
            w.format.decode(raw, &mut out).unwrap();
            out
        };
        let vectors = plan.vectors.iter().map(|id| (*id, bytes_of(&vector(*id)))).collect();
        let table = |r: &kjit_model::graph::Rope| {
            bytes_of(&angles(
                &r.frequencies(r.factors.map(vector).as_deref()),
                f64::from(r.magnitude),
                options.context_of(graph),
            ))
        };
        let caches = plan
            .caches
            .iter()
            .map(|n| (vec![0xffu8; n[0] as usize], vec![0xffu8; n[1] as usize]))
            .collect();
        let mut machine = Machine {
            arena: vec![0xff; plan.arena() as usize],
            ropes: graph.ropes.iter().map(table).collect(),
            tokens: vec![0xff; 4 * (options.context_of(graph) + 1)],
            position: vec![0; 4],
            numbers: (0..options.context_of(graph) as u32).flat_map(u32::to_le_bytes).collect(),
            seed_of_draws: vec![0; 8],
            adapters: bytes_of(&graph.adapter_factors()),
            graph,
            folder: folder.to_owned(),
            compiler: compiler.to_owned(),
            runner: runner(compiler),
            built: HashMap::new(),
            matrices,
            vectors,
            caches,
            plan,
            seed: 1,
        };
        for p in machine.plan.programs() {
            for b in p.buffers.iter().filter(|b| b.zeroed) {
                machine.arena[(p.base + b.offset) as usize..(p.base + b.offset + b.bytes) as usize]
                    .fill(0);
            }
        }
        machine
    }

    /// Writes token ids from this position on, and the position.
    pub fn set(&mut self, tokens: &[u32], position: u32) {
        for (to, id) in self.tokens.chunks_exact_mut(4).skip(position as usize).zip(tokens) {
            to.copy_from_slice(&id.to_le_bytes());
        }
        self.position = position.to_le_bytes().to_vec();
    }

    /// Reads the token id at a position.
    pub fn token(&self, position: u32) -> u32 {
        let at = 4 * position as usize;
        u32::from_le_bytes(self.tokens[at..at + 4].try_into().unwrap())
    }

    /// Chooses the next token greedily.
    pub fn choose(&mut self, now: &LaunchParams) {
        let (launch, program) = (self.plan.greedy.clone().unwrap(), self.plan.decode.clone());
        self.launch(&program, &launch, now);
    }

    /// Runs the launches of a program.
    pub fn run(&mut self, program: &Program, now: &LaunchParams) {
        for launch in &program.launches {
            self.launch(program, launch, now);
        }
    }

    /// The first rows of a stored value; `None` if a fused step does not store it.
    pub fn value(&self, program: &Program, v: ValueId, rows: usize) -> Option<Vec<f32>> {
        let kept = program.kept.iter().find(|k| k.value == v)?;
        let (b, base) = (&program.buffers[kept.buffer.0 as usize], program.base);
        let bytes = &self.arena[(base + b.offset) as usize..][..b.bytes as usize];
        let value = self.graph.value(v);
        let cols = value.slots * value.width;
        if let Some(layout) = kept.tiled {
            let halves = bytes.as_chunks::<2>().0;
            let at = |i: usize| {
                f16::from_le_bytes(halves[layout.index(i / cols, i % cols, cols)]).to_f32()
            };
            return Some((0..rows * cols).map(at).collect());
        }
        Some(
            bytes
                .as_chunks::<4>()
                .0
                .iter()
                .take(rows * cols)
                .map(|b| f32::from_le_bytes(*b))
                .collect(),
        )
    }

    fn memory(&mut self, program: &Program, bind: &Bind) -> Option<&mut [u8]> {
        Some(match bind {
            Bind::Buffer(id) => {
                let (b, base) = (&program.buffers[id.0 as usize], program.base);
                &mut self.arena[(base + b.offset) as usize..][..b.bytes as usize]
            }
            Bind::Matrix(w) => self.matrices.get_mut(w).unwrap(),
            Bind::Vector(w) => self.vectors.get_mut(w).unwrap(),
            Bind::Rope(r) => &mut self.ropes[r.0 as usize],
            Bind::Keys(c) => &mut self.caches[c.0 as usize].0,
            Bind::Values(c) => &mut self.caches[c.0 as usize].1,
            Bind::Control(Control::Tokens) => &mut self.tokens,
            Bind::Control(Control::Position) => &mut self.position,
            Bind::Control(Control::Numbers) => &mut self.numbers,
            Bind::Control(Control::Adapters) => &mut self.adapters,
            Bind::Control(Control::Seed) => &mut self.seed_of_draws,
            // Programs of one sequence bind none of these controls.
            Bind::Control(Control::Options | Control::Slots | Control::Pages) => return None,
            _ => return None,
        })
    }

    fn build(&mut self, launch: &Launch) -> PathBuf {
        if let Some(path) = self.built.get(&launch.job.0) {
            return path.clone();
        }
        let job = &self.plan.jobs[launch.job.0 as usize];
        let folder = self.folder.join(launch.job.0.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in job.job.source.reached().unwrap() {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let text = job.job.source.render(&job.job.constants, &job.job.options);
        let (defines, rest) = text.split_once("#line").unwrap();
        let (entry, mut program) = (&job.entry, String::new());
        let _ = write!(program, "{defines}#include \"{HIPSIM}/kernel.h\"\n#line{rest}\n");
        let _ = write!(program, "KJSIM_ENTRY({entry})\nKJSIM_LIBRARY(KJSIM_DESCRIBE({entry}))\n");
        std::fs::write(folder.join("main.cpp"), program).unwrap();
        // Compiles for the instructions of this processor: without them each f16 conversion is a
        // function call, which is half of a prompt's time. Kernels do not use the C++ library;
        // linking without it takes half the time.
        let native = ["-march=native", "-fno-exceptions", "-fno-rtti", "-fno-stack-protector"];
        let bare = ["-shared", "-fPIC", "-nostdlib"];
        let files = ["-o", "kernel.so", "main.cpp", "-lm", "-lc", "-lgcc"];
        compile(&self.compiler, &folder, &[&FLAGS[..], &native, &bare, &files].concat());
        self.built.insert(launch.job.0, folder.clone());
        folder
    }

    fn launch(&mut self, program: &Program, launch: &Launch, now: &LaunchParams) {
        let folder = self.build(launch);
        let mut bytes = vec![];
        launch.grid.iter().for_each(|g: &Dim| bytes.extend(g.at(now).to_le_bytes()));
        bytes.extend(launch.shared.to_le_bytes());
        self.seed += 1;
        bytes.extend(self.seed.to_le_bytes());
        bytes.extend((launch.args.len() as u32).to_le_bytes());
        let mut before: Vec<(Bind, Vec<u8>)> = vec![];
        for bind in &launch.args {
            let (kind, data) = match bind {
                Bind::Null => (2u32, vec![]),
                Bind::Dim(d) => (0, d.at(now).to_le_bytes().to_vec()),
                Bind::U32(n) => (0, n.to_le_bytes().to_vec()),
                Bind::U64(n) => (0, n.to_le_bytes().to_vec()),
                Bind::F32(x) => (0, x.to_le_bytes().to_vec()),
                Bind::Elements(n) => (0, (n * u64::from(now.tokens)).to_le_bytes().to_vec()),
                Bind::Chosen(c) => match c.of(now.choice) {
                    Number::U32(n) => (0, n.to_le_bytes().to_vec()),
                    Number::F32(x) => (0, x.to_le_bytes().to_vec()),
                },
                memory => {
                    let data = self.memory(program, memory).unwrap().to_vec();
                    before.push((*memory, data.clone()));
                    (1, data)
                }
            };
            bytes.extend(kind.to_le_bytes());
            bytes.extend((data.len() as u64).to_le_bytes());
            bytes.extend(data);
        }
        std::fs::write(folder.join("in"), bytes).unwrap();
        let out = Command::new(&self.runner)
            .args(["./kernel.so", "in", "out"])
            .current_dir(&folder)
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{}: {}: {}",
            launch.name,
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
        let after = std::fs::read(folder.join("out")).unwrap();
        let mut rest = after.as_slice();
        for (bind, was) in before {
            let (one, more) = rest.split_at(was.len());
            // A buffer may be bound twice (a sum written over its operand). The changed copy
            // counts.
            if one != was {
                self.memory(program, &bind).unwrap().copy_from_slice(one);
            }
            rest = more;
        }
    }

    pub fn graph(&self) -> &Graph {
        self.graph
    }
}
