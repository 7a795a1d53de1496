//! Cases and samples of `latent_flash`.

use crate::attention::latent::lists;
use crate::case::{Case, CaseArg, FOLLOWS, floats, input, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Storage, Tolerance};
use crate::paged::Pages;
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::latent_flash::{LatentFlashArgs, LatentFlashSpec, LatentFlashTuning};
use kjit_kernels::top_keys::TopKeysSpec;
use kjit_kernels::{Family, Size, SpecError};

impl Cases for LatentFlashSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let Size { tokens, past } = size;
        let (dim, heads, kv) = (self.kv.head_dim, self.heads, self.kv);
        let (capacity, scale) = (past + tokens + 3, 1.0 / (dim as f32).sqrt());
        let q = random.normals(tokens * heads * dim, 1.0);
        // NaN at positions without a token
        let mut cache = vec![0xff; kv.bytes(capacity).unwrap_or(0)];
        let mut rows = vec![];
        for position in 0..past + tokens {
            kv.write_row(&mut cache, capacity, 0, position, &random.normals(dim, 1.0));
            rows.push(kv.read_row(&cache, capacity, 0, position));
        }
        let all =
            self.chosen.map_or(vec![], |n| lists(n, (0..tokens).map(|t| past + t + 1), random));
        let mut want = vec![];
        // If there are many tokens, the oracle computes some of them.
        let step = if tokens > 128 { 61 } else { 1 };
        for t in 0..tokens {
            if t % step > 0 && t + 1 < tokens {
                want.resize(want.len() + heads * self.rank, f64::INFINITY);
                continue;
            }
            let seen: Vec<&Vec<f32>> = match self.chosen {
                Some(n) => {
                    let list = all[t * n..][..n].iter().filter(|p| **p != TopKeysSpec::NONE);
                    list.map(|p| &rows[*p as usize]).collect()
                }
                None => rows[..=past + t].iter().collect(),
            };
            for q in q[t * heads * dim..][..heads * dim].chunks(dim) {
                let dot = |row: &Vec<f32>| {
                    q.iter().zip(row).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
                };
                let scores: Vec<f64> = seen.iter().map(|row| f64::from(scale) * dot(row)).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let shares: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let sum: f64 = shares.iter().sum();
                let mix = |c: usize| {
                    seen.iter()
                        .zip(&shares)
                        .map(|(row, p)| p / sum * f64::from(row[c]))
                        .sum::<f64>()
                };
                want.extend((0..self.rank).map(mix));
            }
        }
        let reason = "queries, rows and probabilities are f16";
        let tolerance = Tolerance { norm: 1.5e-3, each: 1.5e-2, reason };
        let pages = self.paged.then(|| Pages::new(&[past + tokens], capacity, random));
        let cache =
            pages.as_ref().map_or_else(|| cache.clone(), |pages| pages.pool(&kv, &cache, capacity));
        let name = format!(
            "latent_flash {heads} heads of {dim}, values of {}, {:?}, {tokens} tokens after {past}, {:?}{}, {:?} chosen",
            self.rank,
            kv.storage,
            self.tuning(target)?,
            if self.paged { ", paged" } else { "" },
            self.chosen
        );
        let args = LatentFlashArgs {
            q: floats("q", &q),
            rows: input("rows", cache),
            position: input("position", (past as u32).to_le_bytes().to_vec()),
            out: output("out", Storage::F32, want, tolerance),
            scale: CaseArg::F32(scale),
            tokens: FOLLOWS,
            capacity: CaseArg::U32(capacity as u32),
            table: pages
                .map_or_else(|| words("chosen", &all), |pages| words("table", &pages.table)),
        };
        Case::of(name, self, target, self.launch(target, units, size)?, args)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use KvStorage::{F16, F32, Q8_0};
        // Heads that do and do not divide the rows of a block, ranks that the waves share evenly
        // and unevenly, one token and many, a past that is not a multiple of a tile. In pages: a
        // past that ends with a page and one that ends before.
        for (heads, head_dim, rank, storage, tokens, past, paged, chosen) in [
            (16, 576, 512, F16, 9, 70, false, None),
            (3, 96, 80, F16, 47, 5, false, None),
            (5, 160, 128, Q8_0, 13, 33, false, None),
            (4, 64, 48, F32, 1, 0, false, None),
            (16, 320, 256, F16, 5, 131, false, None),
            (6, 576, 512, Q8_0, 7, 64, false, None),
            (16, 576, 512, F16, 9, 120, true, None),
            (5, 160, 128, Q8_0, 13, 256, true, None),
            // Chosen positions: fewer than the sequence has, as many, more; including the new
            // tokens.
            (128, 320, 256, F16, 2, 150, false, Some(100)),
            (5, 96, 80, F16, 20, 4, false, Some(12)),
            (3, 160, 128, Q8_0, 6, 70, false, Some(33)),
            (4, 64, 48, F32, 3, 9, false, Some(11)),
        ] {
            let kv = KvLayout { heads: 1, head_dim, storage };
            // Paging is independent of tuning; one tuning is enough to test it.
            let all = if paged { 1 } else { usize::MAX };
            for tuning in
                LatentFlashTuning::all(target, wave, &kv, paged || chosen.is_some()).take(all)
            {
                let spec = LatentFlashSpec { heads, kv, rank, paged, chosen, tuning: Some(tuning) };
                if spec.covered(target) {
                    into.push(spec.case(target, 1, Size { tokens, past }, random)?);
                }
            }
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        for storage in [KvStorage::F16, KvStorage::Q8_0] {
            let kv = KvLayout { heads: 1, head_dim: 576, storage };
            let spec = LatentFlashSpec {
                heads: 16,
                kv,
                rank: 512,
                paged: false,
                chosen: None,
                tuning: None,
            };
            if spec.covered(list.target) {
                let paged = LatentFlashSpec { paged: true, ..spec.clone() };
                list.add(format!("latent_flash 16 × 512 + 64 {storage:?}"), spec, Size::CHUNK)?;
                list.add(
                    format!("latent_flash 16 × 512 + 64 {storage:?} in pages"),
                    paged,
                    Size::CHUNK,
                )?;
            }
        }
        let kv = KvLayout { heads: 1, head_dim: 576, storage: KvStorage::F16 };
        let spec = LatentFlashSpec {
            heads: 128,
            kv,
            rank: 512,
            paged: false,
            chosen: Some(2048),
            tuning: None,
        };
        if spec.covered(list.target) {
            list.add("latent_flash 128 × 512 + 64 F16 2048 chosen".to_owned(), spec, Size::CHUNK)?;
        }
        Ok(())
    }
}
