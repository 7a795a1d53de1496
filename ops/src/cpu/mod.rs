//! The CPU backend: interprets programs over tiles, and runs the other primitives. Large groups use
//! several threads.

mod cast;
pub(crate) mod copy;
mod elem;
pub(crate) mod fold;
pub(crate) mod group;
mod interp;
pub(crate) mod order;
pub(crate) mod product;
mod typed;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{Buffer, HostMemory, Store};
use crate::program::Program;
use bytemuck::{Pod, cast_slice_mut};
use interp::{Machine, TILE};
use typed::typed;

/// Number of elements below which a second thread is not faster (starting it takes about 30 µs).
const ALONE: usize = 1 << 16;

/// Number of threads for this many elements.
fn threads(elements: usize) -> usize {
    if elements < ALONE {
        return 1;
    }
    // Beyond sixteen threads memory is the limit.
    let most = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    most.min(elements / (ALONE / 2)).max(1)
}

/// Computes every element of a program's index space, in order.
pub(crate) fn each(program: &Program, shape: &[usize]) -> Result<Buffer> {
    let (n, _) = program.sizes();
    let dtype = program.dtype();
    let bytes = n * dtype.size();
    let mut words = HostMemory::words(bytes)?;
    match dtype {
        DType::F16 => {
            let to = slice::<u16>(&mut words, n);
            run(program, to, |v: f32| half::f16::from_f32(v).to_bits())
        }
        DType::BF16 => {
            let to = slice::<u16>(&mut words, n);
            run(program, to, |v: f32| half::bf16::from_f32(v).to_bits())
        }
        dtype => typed!(dtype, T => run(program, slice::<T>(&mut words, n), |v: T| v)),
    }?;
    Ok(Buffer::packed(Store::Host(HostMemory::own(words, bytes)), shape))
}

fn slice<T: Pod>(words: &mut [u64], n: usize) -> &mut [T] {
    cast_slice_mut::<u64, T>(words).get_mut(..n).unwrap_or_default()
}

fn run<S: Pod, T: Send>(
    program: &Program,
    to: &mut [T],
    write: impl Fn(S) -> T + Copy + Sync,
) -> Result<()> {
    let part = to.len().div_ceil(threads(to.len())).next_multiple_of(TILE);
    in_parts(to, part, |first, to| {
        let mut machine = Machine::new(program);
        for (tile, to) in to.chunks_mut(TILE).enumerate() {
            machine.run(first + tile * TILE, to.len())?;
            let values = machine.values::<S>(to.len());
            to.iter_mut().zip(values).for_each(|(t, v)| *t = write(*v));
        }
        Ok(())
    })
}

/// Runs `work` on slices of `to`, each on a thread, with the index of the slice's first element.
fn in_parts<T: Send>(
    to: &mut [T],
    part: usize,
    work: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
) -> Result<()> {
    if to.len() <= part {
        return work(0, to);
    }
    std::thread::scope(|scope| {
        let mut parts = to.chunks_mut(part).enumerate();
        let own = parts.next();
        let work = &work;
        let others: Vec<_> = parts
            .map(|(i, to)| {
                std::thread::Builder::new().spawn_scoped(scope, move || work(i * part, to))
            })
            .collect();
        let mut done = own.map_or(Ok(()), |(_, to)| work(0, to));
        for other in others {
            let ended = match other {
                Ok(thread) => thread
                    .join()
                    .unwrap_or(Err(Error::Inside("a thread of the CPU backend ended early"))),
                Err(_) => Err(Error::Inside("the system cannot start a thread")),
            };
            done = done.and(ended);
        }
        done
    })
}
