//! Cases and samples of a prompt's heads.

use crate::case::{Case, CaseArg, floats, optional, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Expect, HALF, SINGLE, Storage};
use crate::oracle::{HEADS_EPS, ready};
use crate::paged::Pages;
use crate::samples::{HEADS, Samples, heads_form};
use kjit_engine::Target;
use kjit_kernels::heads::{HeadsForm, RopeForm, angles};
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::rope_kv::{RopeKvArgs, RopeKvSpec};
use kjit_kernels::variant::Wave;
use kjit_kernels::{Family, Size, SpecError};

/// A case in a cache of `capacity` positions.
fn case(
    spec: &RopeKvSpec,
    target: &Target,
    units: u32,
    (size, capacity): (Size, usize),
    random: &mut Random,
) -> Result<Case, SpecError> {
    let form = &spec.form;
    let (kv, dim) = (form.kv, form.kv.head_dim);
    let Size { tokens, past: start } = size;
    let table = angles(
        &(0..form.rope.dims / 2).map(|i| 0.7f64.powi(i as i32)).collect::<Vec<_>>(),
        1.25,
        capacity,
    );
    let q = random.normals(tokens * form.heads * dim, 1.5);
    let (k, v) = (
        random.normals(tokens * kv.heads * dim, 1.5),
        random.normals(tokens * kv.heads * dim, 1.0),
    );
    let norms = if form.qk_norm {
        [random.normals(dim, 1.0), random.normals(dim, 1.0)]
    } else {
        [vec![], vec![]]
    };
    let mut rotated = vec![];
    for t in 0..tokens {
        for head in 0..form.heads {
            rotated.extend(ready(
                form,
                &q[(t * form.heads + head) * dim..][..dim],
                &norms[0],
                &table,
                start + t,
            ));
        }
    }
    // Keys and values in a cache of f32 or f16, directly from the oracle; rows of other positions
    // stay poison.
    let (storage, each, tolerance) = match kv.storage {
        KvStorage::F32 => (Storage::F32, 4, SINGLE),
        KvStorage::F16 | KvStorage::Q8_0 => (Storage::F16, 2, HALF),
    };
    let pages = form.paged.then(|| Pages::new(&[start + tokens], capacity, random));
    let bytes =
        pages.as_ref().map_or(kv.bytes(capacity).unwrap_or(0), |pages| pages.elements(&kv, 1));
    let elements = bytes / each;
    let mut want = [vec![f64::NAN; elements], vec![f64::NAN; elements]];
    for t in 0..tokens {
        // 8-bit rows with scales are compared with the oracle in the cases of attention, which
        // reads them.
        for head in 0..if kv.storage == KvStorage::Q8_0 || form.kept_before { 0 } else { kv.heads }
        {
            let at = (t * kv.heads + head) * dim;
            let row = match &pages {
                None => (head * capacity + start + t) * dim,
                Some(pages) => pages.element(&kv, each, head, start + t),
            };
            want[0][row..row + dim].copy_from_slice(&ready(
                form,
                &k[at..at + dim],
                &norms[1],
                &table,
                start + t,
            ));
            want[1][row..row + dim]
                .iter_mut()
                .zip(&v[at..at + dim])
                .for_each(|(w, &v)| *w = f64::from(v));
        }
    }
    let [keys, values] = want;
    let rows = |name, want| match kv.storage {
        KvStorage::Q8_0 => {
            CaseArg::Buffer { name, before: vec![0xff; bytes].into(), expect: Expect::Anything }
        }
        KvStorage::F16 | KvStorage::F32 => output(name, storage, want, tolerance),
    };
    let Wave { wave } = spec.tuning(target)?;
    let name = format!("rope_kv {form}, half {}, wave {wave}", spec.half);
    let (out, tolerance) = if spec.half { (Storage::F16, HALF) } else { (Storage::F32, SINGLE) };
    let args = RopeKvArgs {
        q: floats("q", &q),
        k: if form.kept_before { CaseArg::Null } else { floats("k", &k) },
        v: if form.kept_before { CaseArg::Null } else { floats("v", &v) },
        q_norm: optional("q_norm", &norms[0]),
        k_norm: if form.kept_before { CaseArg::Null } else { optional("k_norm", &norms[1]) },
        angles: optional("angles", &table),
        position: words("position", &[start as u32]),
        keys: rows("keys", keys),
        values: rows("values", values),
        rotated: output("rotated", out, rotated, tolerance),
        eps: CaseArg::F32(HEADS_EPS),
        capacity: CaseArg::U32(capacity as u32),
        table: pages.map_or(CaseArg::Null, |pages| words("table", &pages.table)),
    };
    Case::of(name, spec, target, spec.launch(target, units, size)?, args)
}

impl Cases for RopeKvSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        case(self, target, units, (size, size.past + size.tokens + 1), random)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        let size = Size { tokens: 5, past: 3 };
        for (heads, kv_heads, head_dim, storage, qk_norm, halves, half, kept_before) in [
            (5, 1, 64, KvStorage::F16, false, false, true, false),
            (4, 2, 80, KvStorage::F32, true, true, false, false),
            (2, 2, 256, KvStorage::F32, true, false, true, false),
            (3, 1, 96, KvStorage::F16, true, false, false, false),
            (3, 1, 64, KvStorage::F16, true, true, false, true),
            (2, 1, 512, KvStorage::F16, true, true, false, false),
        ] {
            // Heads of 96 have no rotation.
            let dims = match head_dim {
                80 => 32,
                96 => 0,
                all => all,
            };
            let rope = RopeForm { dims, halves };
            let form = HeadsForm {
                heads,
                kv: KvLayout { heads: kv_heads, head_dim, storage },
                qk_norm,
                rope,
                kept_before,
                paged: false,
            };
            let spec = RopeKvSpec { form, half, tuning: Some(Wave { wave }) };
            into.push(case(&spec, target, 2, (size, 11), random)?);
            // Across the end of a page.
            let spec = RopeKvSpec { form: HeadsForm { paged: true, ..form }, ..spec };
            into.push(case(&spec, target, 2, (Size { tokens: 5, past: 125 }, 133), random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        for (heads, kv_heads, head_dim) in HEADS {
            for storage in [KvStorage::F16, KvStorage::Q8_0, KvStorage::F32] {
                let form = heads_form(heads, KvLayout { heads: kv_heads, head_dim, storage });
                let spec = RopeKvSpec { form, half: true, tuning: None };
                list.add(
                    format!("rope_kv {heads}/{kv_heads} × {head_dim} {storage:?}"),
                    spec,
                    Size::ONE,
                )?;
            }
        }
        Ok(())
    }
}
