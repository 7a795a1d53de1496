//! How well kept keys answer new tokens: `gpu/key_scores.h`.

use crate::attention::kv::{KvLayout, KvStorage};
use crate::cases::{Case, CaseArg, FOLLOWS, Random, SINGLE, Storage, floats, input, output, words};
use crate::matrix::{CONTEXT, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require, shared_bytes};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Scores of kept keys, theirs included, for new tokens, by small heads of their own: `Σ over heads
/// of w · max(q · key, 0)` (DeepSeek-V3.2-Exp 2025, the "lightning indexer").
///
/// Numerics: f32 throughout, keys as they are stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyScoresSpec {
    /// Query heads.
    pub heads: usize,
    /// Keys: one head.
    pub kv: KvLayout,
    /// The tokens are one sequence's, one behind the other; else each is a sequence's.
    pub one: bool,
}

arguments! {
    /// The arguments.
    KeyScoresArgs {
        /// `tokens × heads × head_dim` f32.
        q: Pointer,
        /// `tokens × heads` f32: a factor for each head.
        w: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// A u32 per slot: tokens before the new ones.
        position: Pointer,
        /// Per [`KvLayout`], slot `s` at `s · sequence_bytes`.
        rows: Pointer,
        /// Out: a row of `capacity` f32 for each token from `first` on, as far as there are rows of
        /// the grid.
        scores: Pointer,
        /// The token of the first row.
        first: U32,
        /// New tokens.
        tokens: U32,
        /// Positions of a slot.
        capacity: U32,
        /// Blocks that share a row.
        splits: U32,
        /// Bytes from one slot's rows to the next one's.
        sequence_bytes: U64,
    }
}

const NAME: &str = "key_scores";
const BLOCK: u32 = 256;
/// Positions at a time.
const TILE: usize = 32;
/// Threads that have the heads of a position, and heads that each has at most.
const LANES: usize = 16;
const EACH: usize = 4;

impl KeyScoresSpec {
    /// Blocks of a compute unit.
    pub const BLOCKS_PER_UNIT: u32 = 4;

    /// Blocks for which a row of so many positions has work.
    #[must_use]
    pub const fn blocks(&self, positions: u32) -> u32 {
        positions.div_ceil(TILE as u32)
    }

    /// Bytes of dynamic LDS.
    const fn shared(&self) -> usize {
        let heads = self.heads.div_ceil(LANES);
        let heads = LANES * if heads < EACH { heads } else { EACH };
        4 * ((heads + TILE) * (self.kv.head_dim + 1) + heads)
    }
}

impl Family for KeyScoresSpec {
    const NAME: &'static str = NAME;
    type Args<A> = KeyScoresArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = if self.one { ", one sequence" } else { "" };
        write!(f, "{} × {} {:?}{one}", self.heads, self.kv.head_dim, self.kv.storage)
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        let dim = self.kv.head_dim;
        require(
            self.kv.heads == 1 && dim > 0 && dim.is_multiple_of(16) && self.heads > 0,
            NAME,
            || {
                format!(
                    "{} heads on {} of {dim}: one key, a multiple of 16, is covered",
                    self.heads, self.kv.heads
                )
            },
        )
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        let shared = shared_bytes(NAME, target, self.shared(), 0, "shorter keys")?;
        Ok(Block { wave: target.default_wave(), threads: BLOCK, shared })
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape =
            self.kv.shape().number("HEADS", self.heads).number("TILE", TILE).flag("ONE", self.one);
        let kernel = of_shape(NAME, &shape, Constants::new(), block.wave, block.threads);
        Ok(Kernel { shared: block.shared, ..kernel })
    }

    fn grid(&self, _: &Target, _: &Fixed, units: u32, size: Size) -> Result<Grid, SpecError> {
        let tokens = size.tokens.max(1) as u32;
        let most = self.blocks((size.past + size.tokens) as u32).max(1);
        let splits = (units.max(1) * KeyScoresSpec::BLOCKS_PER_UNIT / tokens).clamp(1, most);
        Ok(Grid::of([splits, tokens, 1]).number("splits", splits).number("tokens", tokens))
    }

    fn work(&self, Size { tokens, past }: Size) -> Work {
        let pairs: usize = (0..tokens).map(|t| past + t + 1).sum();
        let each = 4 * tokens * self.heads * (self.kv.head_dim + 1);
        let sequences = if self.one { 1 } else { tokens };
        let keys = sequences * self.kv.bytes(past + tokens / sequences.max(1)).unwrap_or(0);
        let operations = 2 * pairs * self.heads * (self.kv.head_dim + 1);
        Work { bytes: (keys + each + 4 * pairs) as u64, operations: operations as u64 }
    }

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
        // Heads of one pass and of several, that fill it and that do not; ends of tiles; one block
        // for a row and several; rows from a later token on.
        for (heads, head_dim, storage, units, positions, first, one) in [
            (64, 128, F16, 1, vec![70], 0, false),
            (4, 64, F16, 1, vec![0, 31, 32, 45], 0, false),
            (70, 32, F32, 1, vec![33], 0, false),
            (5, 80, Q8_0, 1, vec![40, 9], 0, false),
            (32, 128, F16, 3, vec![130], 0, false),
            (4, 64, F16, 2, vec![29; 7], 0, true),
            (20, 48, F32, 1, vec![0; 9], 4, true),
        ] {
            let spec = KeyScoresSpec { heads, kv: KvLayout { heads: 1, head_dim, storage }, one };
            into.push(case(&spec, target, units, &positions, first, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let size = Size { tokens: 1, past: CONTEXT - 1 };
        let kv = KvLayout { heads: 1, head_dim: 128, storage: KvStorage::F16 };
        list.add(
            "key_scores 64 × 128 F16".to_owned(),
            KeyScoresSpec { heads: 64, kv, one: false },
            size,
        )
    }
}

/// What must come out, in f64, of sequences with so many tokens before the new one, or of one with
/// as many new tokens; rows are those from the token `first` on.
fn case(
    spec: &KeyScoresSpec,
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
    // Several sequences lie in another order, with one place free; what nobody wrote is poison.
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
        "key_scores {heads} heads of {dim}, {:?}, positions {positions:?} from {first}, one {}, \
         {} splits",
        kv.storage, spec.one, launch.geometry.grid[0]
    );
    let args = KeyScoresArgs {
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
