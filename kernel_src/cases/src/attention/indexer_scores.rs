//! Cases and samples of `indexer_scores`.

use crate::case::{Case, CaseArg, FOLLOWS, floats, input, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{SINGLE, Storage};
use crate::samples::{CONTEXT, Samples};
use kjit_engine::Target;
use kjit_kernels::indexer_scores::{IndexerScoresArgs, IndexerScoresSpec};
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::{Family, Size, SpecError};

impl Cases for IndexerScoresSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let n = size.tokens.max(1);
        let positions: Vec<usize> =
            (0..n).map(|t| size.past + if self.one { 0 } else { t % 3 }).collect();
        case(self, target, units, &positions, 0, random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use KvStorage::{F16, F32, Q8_0};
        // Heads of one pass and of several, full and partial; ends of tiles; one block for a row
        // and several; rows from a later token on.
        for (heads, head_dim, storage, units, positions, first, one) in [
            (64, 128, F16, 1, vec![70], 0, false),
            (4, 64, F16, 1, vec![0, 31, 32, 45], 0, false),
            (70, 32, F32, 1, vec![33], 0, false),
            (5, 80, Q8_0, 1, vec![40, 9], 0, false),
            (32, 128, F16, 3, vec![130], 0, false),
            (4, 64, F16, 2, vec![29; 7], 0, true),
            (20, 48, F32, 1, vec![0; 9], 4, true),
        ] {
            let spec =
                IndexerScoresSpec { heads, kv: KvLayout { heads: 1, head_dim, storage }, one };
            into.push(case(&spec, target, units, &positions, first, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let size = Size { tokens: 1, past: CONTEXT - 1 };
        let kv = KvLayout { heads: 1, head_dim: 128, storage: KvStorage::F16 };
        list.add(
            "indexer_scores 64 × 128 F16".to_owned(),
            IndexerScoresSpec { heads: 64, kv, one: false },
            size,
        )
    }
}

/// Expected results, in f64, of sequences with these numbers of tokens before the new one, or of
/// one sequence with this number of new tokens; rows are from token `first` on.
fn case(
    spec: &IndexerScoresSpec,
    target: &Target,
    units: u32,
    positions: &[usize],
    first: usize,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (kv, dim, n, heads) = (spec.kv, spec.kv.head_dim, positions.len(), spec.heads);
    let capacity = positions.iter().max().unwrap_or(&0) + n + 3;
    let bytes = kv.bytes(capacity).unwrap_or(0);
    let (q, w) = (random.normals(n * heads * dim, 1.0), random.normals(n * heads, 1.0));
    // Several sequences are in permuted slots, with one free slot. Unwritten memory is poison.
    let places = if spec.one { 1 } else { n + 1 };
    let slots: Vec<u32> =
        (0..n).map(|s| if spec.one { 0 } else { (places - 1 - s) as u32 }).collect();
    let (mut rows, mut by_place) = (vec![0xffu8; places * bytes], vec![u32::MAX; places]);
    let mut want = vec![];
    for (t, &past) in positions.iter().enumerate() {
        let at = slots[t] as usize * bytes;
        by_place[slots[t] as usize] = past as u32;
        let cache = &mut rows[at..at + bytes];
        if !spec.one || t == 0 {
            let all = past + if spec.one { n } else { 1 };
            (0..all).for_each(|p| kv.write_row(cache, capacity, 0, p, &random.normals(dim, 1.0)));
        }
        if t < first {
            continue;
        }
        let seen = past + 1 + if spec.one { t } else { 0 };
        let token = &q[t * heads * dim..][..heads * dim];
        for p in 0..seen {
            let key = kv.read_row(cache, capacity, 0, p);
            let dot = |q: &[f32]| {
                q.iter().zip(&key).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
            };
            let by = w[t * heads..].iter().map(|w| f64::from(*w));
            want.push(token.chunks(dim).zip(by).map(|(q, by)| by * dot(q).max(0.0)).sum());
        }
        want.resize((t + 1 - first) * capacity, f64::NAN);
    }
    let mut launch = spec.launch(target, units, Size { tokens: n, past: capacity - n })?;
    launch.geometry.grid[1] = (n - first) as u32;
    let name = format!(
        "indexer_scores {heads} heads of {dim}, {:?}, positions {positions:?} from {first}, one {}, {} splits",
        kv.storage, spec.one, launch.geometry.grid[0]
    );
    let args = IndexerScoresArgs {
        q: floats("q", &q),
        w: floats("w", &w),
        slots: if spec.one { CaseArg::Null } else { words("slots", &slots) },
        position: words("position", &by_place),
        rows: input("rows", rows),
        scores: output("scores", Storage::F32, want, SINGLE),
        first: CaseArg::U32(first as u32),
        tokens: FOLLOWS,
        capacity: CaseArg::U32(capacity as u32),
        splits: FOLLOWS,
        sequence_bytes: CaseArg::U64(bytes as u64),
    };
    Case::of(name, spec, target, launch, args)
}
