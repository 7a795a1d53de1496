//! Cases and samples of `read`.

use crate::case::{Case, CaseArg, FOLLOWS, input};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::Expect;
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::launch::Launch;
use kjit_kernels::read::{ReadArgs, ReadSpec};
use kjit_kernels::variant::Fixed;
use kjit_kernels::{Family, Size, SpecError};

impl Cases for ReadSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        of(self, target, units, size.tokens << 16, random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        // Fewer vectors than threads, and some rounds of all threads with a partial last one.
        for (in_flight, vectors) in [(1, 33), (4, 1031), (8, 8 * 1024 + 7)] {
            into.push(of(&ReadSpec { in_flight }, target, 1, vectors, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add("read".to_owned(), ReadSpec { in_flight: 8 }, READ)
    }
}

/// MiB that are read for timing.
const READ: Size = Size { tokens: 1024, past: 0 };

/// A case of `vectors` vectors.
fn of(
    spec: &ReadSpec,
    target: &Target,
    units: u32,
    vectors: usize,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let launch = Launch::of(spec.block(target, &Fixed)?, ReadSpec::grid_of(vectors, units));
    // A prime number of words, repeated.
    let some: Vec<u8> = (0..4099).flat_map(|_| (random.bits() as u32).to_le_bytes()).collect();
    let mut x = some.repeat((16 * vectors).div_ceil(some.len()));
    x.truncate(16 * vectors);
    let blocks = launch.geometry.grid[0];
    let mut want = vec![0u32; (blocks * launch.geometry.block[0]) as usize];
    let threads = want.len();
    for (i, vector) in x.as_chunks::<16>().0.iter().enumerate() {
        want[i % threads] ^=
            vector.as_chunks::<4>().0.iter().fold(0, |all, word| all ^ u32::from_le_bytes(*word));
    }
    let want = want.iter().flat_map(|w| w.to_le_bytes()).collect();
    let args = ReadArgs {
        x: input("x", x),
        out: CaseArg::Buffer {
            name: "out",
            before: vec![0xff; 4 * threads].into(),
            expect: Expect::Bytes(want),
        },
        vectors: CaseArg::U64(vectors as u64),
        blocks: FOLLOWS,
    };
    let name = format!("read {vectors} vectors, {} in flight, {blocks} blocks", spec.in_flight);
    Case::of(name, spec, target, launch, args)
}
