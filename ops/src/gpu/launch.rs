//! Launches of rendered kernels.

use super::Gpu;
use super::elementwise::each;
use super::fold::{Division, STATE, fold};
use super::render::BLOCK;
use super::turn::turn;
use crate::error::{Error, Result};
use crate::fuse::Readers;
use crate::lower;
use crate::memory::{Buffer, Store};
use crate::node::{Node, Region};
use crate::program::{Map, Program};
use crate::shape::{numel, strides};
use kjit_engine::{Arg, Constants, DeviceBuffer, Geometry, Job, Kernel, Options, Source};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// The blocks of a launch, their threads, and bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub blocks: usize,
    pub threads: u32,
    pub shared: u32,
}

impl Grid {
    /// Blocks of [`BLOCK`] threads.
    pub(super) fn of(blocks: usize) -> Grid {
        Grid { blocks, threads: BLOCK, shared: 0 }
    }
}

impl Gpu {
    /// The kernel of a source: from the cache or compiled, and loaded once in this process. The
    /// source determines its job.
    pub(super) fn kernel(
        &self,
        entry: &'static str,
        text: &str,
        job: impl FnOnce(&str) -> Job,
    ) -> Result<Kernel> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(text) {
            return Ok(kernel.clone());
        }
        let kernel = self.engine.load(&self.device, &job(text))?.kernel(entry)?;
        kernels.insert(text.to_owned(), kernel.clone());
        Ok(kernel)
    }

    /// Launches a rendered kernel: its numbers, then the other arguments.
    pub(super) fn send(
        &self,
        kernel: &Kernel,
        grid: Grid,
        numbers: &[i64],
        rest: &[Arg<'_>],
    ) -> Result<()> {
        let blocks = u32::try_from(grid.blocks).ok().filter(|b| *b < 1 << 31).ok_or_else(|| {
            Error::value("launch", format!("{} blocks exceed the limit of one launch", grid.blocks))
        })?;
        // Most kernels have few arguments, which need no memory of the heap.
        const FEW: usize = 16;
        let mut few = [Arg::Bytes(&[]); FEW];
        let mut many = Vec::new();
        let args = match few.get_mut(..=rest.len()) {
            Some(few) => few,
            None => {
                many.resize(1 + rest.len(), Arg::Bytes(&[]));
                &mut many[..]
            }
        };
        if let Some((first, others)) = args.split_first_mut() {
            *first = Arg::Bytes(bytemuck::cast_slice::<i64, u8>(numbers));
            others.copy_from_slice(rest);
        }
        let args = &*args;
        let shape = Geometry::new(blocks, grid.threads).shared(grid.shared);
        // SAFETY: the source was rendered from a program or a skeleton. It reads its buffers at
        // positions inside their nodes' elements, and writes the outputs, which have an element for
        // each position that it computes.
        #[allow(unsafe_code, reason = "launches of rendered kernels")]
        unsafe {
            self.lane().stream.launch(kernel, &shape, args)?;
        }
        self.launches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Writes a program's values to `to`, at a map's positions.
    pub(super) fn copy_to(
        &self,
        program: &Program,
        map: &Map,
        to: &DeviceBuffer<u8>,
    ) -> Result<()> {
        let target = self.device.target();
        if let (Some(rendered), [leaf]) = (turn(program, map), &program.leaves[..]) {
            let kernel =
                self.kernel("turn", &rendered.text, |text| job("turn", text, BLOCK, target))?;
            let args = [Arg::from(to), Arg::from(self.own_memory(&leaf.buffer)?)];
            return self.send(&kernel, Grid::of(rendered.blocks), &rendered.numbers, &args);
        }
        let mut rendered = each(program, map);
        let kernel =
            self.kernel("each", &rendered.text, |text| job("each", text, BLOCK, target))?;
        let mut args = vec![Arg::from(to)];
        args.extend(self.lookups(&mut rendered)?.map(Arg::from));
        for leaf in &program.leaves {
            args.push(Arg::from(self.own_memory(&leaf.buffer)?));
        }
        self.send(&kernel, Grid::of(rendered.blocks), &rendered.numbers, &args)
    }

    /// The memory of a buffer on this device.
    pub(super) fn own_memory<'a>(&self, buffer: &'a Buffer) -> Result<&'a DeviceBuffer<u8>> {
        match &buffer.store {
            Store::Gpu(gpu, memory) if std::ptr::eq(Arc::as_ptr(gpu), self) => Ok(memory),
            Store::Gpu(..) => Err(Error::Inside("a kernel would read memory of another device")),
            Store::Host(_) => Err(Error::Inside("a kernel would read memory of the host")),
        }
    }

    /// Memory for the partial results of a fold in chunks.
    pub(super) fn parts(&self, by: &Division) -> Result<DeviceBuffer<u8>> {
        let states = match by.chunks {
            1 => 0,
            n => by.groups * (BLOCK as usize / by.lanes) * n,
        };
        self.memory(states * STATE)
    }

    /// Computes every element of a program's index space, in order.
    pub(crate) fn each(self: &Arc<Self>, program: &Program, shape: &[usize]) -> Result<Buffer> {
        let (n, _) = program.sizes();
        let to = self.memory(n * program.dtype().size())?;
        let map = Map { offset: 0, strides: strides(&program.shape) };
        self.copy_to(program, &map, &to)?;
        Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), shape))
    }

    /// A copy of the first input, into which the other inputs are written, one launch per input.
    pub(crate) fn assemble(
        self: &Arc<Self>,
        regions: &[Region],
        inputs: &[Arc<Node>],
        shape: &[usize],
    ) -> Result<Buffer> {
        let (Some((base, parts)), rank) = (inputs.split_first(), shape.len()) else {
            return Err(Error::Inside("a copy without a base"));
        };
        let to = self.memory(numel(shape) * base.dtype.size())?;
        let steps = strides(shape);
        let covered = parts.iter().map(|p| p.numel()).sum::<usize>() >= numel(shape);
        let whole = Region { start: vec![0; rank], step: vec![1; rank] };
        let copied = matches!((regions, parts), ([region], [part])
            if *region == whole && part.shape == shape);
        let first = (!(copied || covered && parts.len() > 1)).then_some((&whole, base));
        for (region, part) in first.into_iter().chain(regions.iter().zip(parts)) {
            if part.numel() == 0 {
                continue;
            }
            let offset = region.start.iter().zip(&steps).map(|(i, s)| i * s).sum();
            let step = region.step.iter().zip(&steps).map(|(i, s)| i * s).collect();
            let (program, map) = lower::copy(part, Map { offset, strides: step })?;
            self.copy_to(&program, &map, &to)?;
        }
        Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), shape))
    }
}

impl Gpu {
    /// A node with equal elements in new memory.
    pub(crate) fn duplicate(self: &Arc<Self>, node: &Arc<Node>) -> Result<Arc<Node>> {
        let (program, _) = lower::copy(node, Map { offset: 0, strides: strides(&node.shape) })?;
        let copy = match node.numel() {
            0 => Buffer::packed(self.store(0)?, &node.shape),
            _ => self.each(&program, &node.shape)?,
        };
        Ok(Node::leaf(node.dtype, node.shape.clone(), copy))
    }

    /// Launches a kernel of the user.
    ///
    /// # Safety
    /// The kernel accesses only its arguments' memory, within their sizes.
    #[allow(unsafe_code, reason = "a kernel may write anywhere")]
    pub(crate) unsafe fn own(
        &self,
        name: &str,
        text: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        values: &[crate::kernels::Value],
    ) -> Result<()> {
        // Compilers get the number of threads of a block.
        let threads = block.iter().try_fold(1u32, |n, b| n.checked_mul(*b)).unwrap_or(u32::MAX);
        let key = format!("{threads} {text}");
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let kernel = match kernels.get(&key) {
            Some(kernel) => kernel.clone(),
            None => {
                let job = job(name, text, threads, self.device.target());
                let kernel = self.engine.load(&self.device, &job)?.kernel(name)?;
                kernels.insert(key, kernel.clone());
                kernel
            }
        };
        drop(kernels);
        let mut args = Vec::new();
        let mut views = Vec::new();
        for value in values {
            if let crate::kernels::Value::Memory(buffer, node) = value {
                let Store::Gpu(_, memory) = &buffer.store else {
                    return Err(Error::Inside("a kernel would read memory of the host"));
                };
                let from = buffer.offset as usize * node.dtype.size();
                views.push(memory.slice(from..)?);
            }
        }
        let mut next = views.iter();
        for value in values {
            args.push(match value {
                crate::kernels::Value::Bytes(bytes) => Arg::Bytes(bytes),
                crate::kernels::Value::Memory(..) => {
                    Arg::from(next.next().ok_or(Error::Inside("a view was lost"))?)
                }
            });
        }
        let shape = Geometry::of(grid, block).shared(shared);
        // SAFETY: this function's caller guarantees it.
        unsafe { self.lane().stream.launch(&kernel, &shape, &args)? };
        self.launches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl crate::tensor::Tensor {
    /// The engine's compile job for this tensor (real, without a value) for a target; the inputs of
    /// its group are computed. Needs no GPU.
    ///
    /// # Errors
    /// [`Error::Value`] if no kernel computes it; errors of computing the inputs.
    pub fn kernel_job(&self, target: &kjit_engine::Target) -> Result<Job> {
        let none = || Error::value("kernel_job", "no kernel computes the tensor");
        let def = self.re.def().ok_or_else(none)?;
        if let Some(product) = crate::fuse::product(&self.re) {
            let program = lower::after(&self.re, &product)?;
            let contraction = crate::contract::of(&product)?;
            return Ok(super::product::product_job(&contraction, program.as_ref(), target));
        }
        if let Some(readers) = Readers::of_rows(&self.re)
            && let Some(group) = lower::rows(&self.re, readers)?
        {
            return Ok(super::rows::rows_job(&group.program, &group.to, target));
        }
        let (entry, text) = match (&def.op, def.inputs.first()) {
            (crate::node::Op::Fold { op, folded }, Some(input)) => {
                let program = lower::fold(input, *folded)?;
                ("fold", fold(&program, *op, &Division::of(&program)).text)
            }
            (crate::node::Op::View(_) | crate::node::Op::Reshape, Some(input))
                if input.def().is_some() && self.re.numel() == input.numel() =>
            {
                return crate::tensor::Tensor::real(Arc::clone(input)).kernel_job(target);
            }
            _ => {
                let program = lower::each(&self.re).map_err(|_| none())?;
                let map = Map { offset: 0, strides: strides(&program.shape) };
                ("each", each(&program, &map).text)
            }
        };
        Ok(job(entry, &text, BLOCK, target))
    }
}

/// The engine's source for a rendered kernel, with the headers of all skeletons.
pub(super) fn source(entry: &str, text: &str) -> Source {
    Source::new(entry.to_owned(), "tensor.hip", text.to_owned())
        .file("ops.h", include_str!("../../gpu/ops.h"))
        .file("math.h", include_str!("../../gpu/math.h"))
        .file("math32.h", include_str!("../../gpu/math32.h"))
        .file("order.h", include_str!("../../gpu/order.h"))
        .file("kjit.h", kjit_kernels::DIALECT)
        .words()
        .entry(entry.to_owned())
}

/// The engine's compile job for a rendered kernel and a target.
pub(super) fn job(entry: &str, text: &str, block: u32, target: &kjit_engine::Target) -> Job {
    let source = source(entry, text);
    let constants = Constants::new().set("KJ_BLOCK", block);
    Job::new(source, constants, Options::wave(target.default_wave()), target.clone())
}
