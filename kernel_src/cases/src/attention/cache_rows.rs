//! Cases and samples of `keep`.

use crate::case::{Case, CaseArg, FOLLOWS, floats, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Expect, HALF, SINGLE, Storage};
use crate::paged::Pages;
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::cache_rows::{CacheRowsArgs, CacheRowsSpec};
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::{Family, Size, SpecError};

impl Cases for CacheRowsSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let (kv, dim, n) = (self.kv, self.kv.head_dim, size.tokens);
        let capacity = size.past + n + 3;
        let bytes = kv.bytes(capacity).unwrap_or(0);
        let row = random.normals(n * dim, 1.0);
        // Several sequences are in permuted slots, with one free slot. Unwritten memory is poison.
        let places = if self.one { 1 } else { n + 1 };
        let slots: Vec<u32> =
            (0..n).map(|s| if self.one { 0 } else { (places - 1 - s) as u32 }).collect();
        let mut position = vec![u32::MAX; places];
        let before = vec![0xffu8; places * bytes];
        let mut after = before.clone();
        for (t, x) in row.chunks(dim).enumerate() {
            let slot = slots[t] as usize;
            let here = size.past + if self.one { t } else { t % 3 };
            position[slot] = if self.one { size.past as u32 } else { here as u32 };
            kv.write_row(&mut after[slot * bytes..][..bytes], capacity, 0, here, x);
        }
        let pages = self.paged.then(|| {
            let lens = position
                .iter()
                .map(|&p| p.wrapping_add(if self.one { n as u32 } else { 1 }) as usize);
            Pages::new(&lens.collect::<Vec<_>>(), capacity, random)
        });
        let [before, after] = match &pages {
            None => [before, after],
            Some(pages) => [before, after].map(|rows| pages.pool(&kv, &rows, capacity)),
        };
        let expect = match kv.storage {
            KvStorage::F32 => Expect::Real {
                storage: Storage::F32,
                want: Storage::F32.read(&after),
                tolerance: SINGLE,
            },
            KvStorage::F16 => Expect::Real {
                storage: Storage::F16,
                want: Storage::F16.read(&after),
                tolerance: HALF,
            },
            // After two roundings the quotient may give the neighbouring code.
            KvStorage::Q8_0 => Expect::Anything,
        };
        let args = CacheRowsArgs {
            row: floats("row", &row),
            slots: if self.one { CaseArg::Null } else { words("slots", &slots) },
            position: words("position", &position),
            rows: CaseArg::Buffer { name: "rows", before: before.into(), expect },
            tokens: FOLLOWS,
            capacity: CaseArg::U32(capacity as u32),
            sequence_bytes: CaseArg::U64(if self.paged { 0 } else { bytes as u64 }),
            table: pages.map_or(CaseArg::Null, |pages| words("table", &pages.table)),
        };
        let paged = if self.paged { ", paged" } else { "" };
        let name = format!(
            "keep {n} of {dim}, {:?}, after {}, one {}{paged}",
            kv.storage, size.past, self.one
        );
        Case::of(name, self, target, self.launch(target, units, size)?, args)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use KvStorage::{F16, F32, Q8_0};
        for (head_dim, storage, tokens, past, one, paged) in [
            (576, F16, 11, 5, true, false),
            (80, F32, 3, 0, false, false),
            (272, F16, 9, 2, false, false),
            (96, Q8_0, 5, 7, true, false),
            (576, F16, 140, 120, true, true),
            (272, F16, 3, 127, false, true),
        ] {
            let spec = CacheRowsSpec { kv: KvLayout { heads: 1, head_dim, storage }, one, paged };
            into.push(spec.case(target, 1, Size { tokens, past }, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let kv = KvLayout { heads: 1, head_dim: 576, storage: KvStorage::F16 };
        list.add(
            "keep 576 F16".to_owned(),
            CacheRowsSpec { kv, one: true, paged: false },
            Size::CHUNK,
        )
    }
}
