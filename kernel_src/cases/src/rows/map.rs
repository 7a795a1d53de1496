//! Cases and samples of `map`.

use crate::case::{Case, CaseArg, floats, optional, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{SINGLE, Storage};
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::map::{Function, Map, MapArgs, MapSpec};
use kjit_kernels::{Family, Size, SpecError};

impl Cases for MapSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        oracle::case(self, self.launch(target, units, size)?, target, size.tokens, random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use Function::*;
        let mut add = |map, cols, residual, tokens| -> Result<(), SpecError> {
            let spec = MapSpec { map, cols, residual };
            into.push(spec.case(target, 2, Size { tokens, past: 0 }, random)?);
            Ok(())
        };
        let all = [
            Identity,
            Silu,
            GeluTanh,
            Relu,
            ReluSquared,
            Sigmoid,
            Tanh,
            Softplus,
            Clamp,
            SoftCap,
            ClampedSilu,
            Xielu,
            Above,
        ];
        for (i, function) in all.into_iter().enumerate() {
            add(Map::Act { function }, 301 + i, i % 3 == 0, 2)?;
            add(Map::Gate { function, each: [1, 7, 43][i % 3] }, 301, i % 2 == 0, 3)?;
        }
        add(Map::Act { function: Sqrt }, 77, false, 2)?;
        add(Map::Affine { weights: 0, biases: 0, each: 1 }, 257, true, 3)?;
        add(Map::Affine { weights: 1, biases: 0, each: 1 }, 5, false, 1)?;
        add(Map::Affine { weights: 0, biases: 259, each: 1 }, 259, false, 2)?;
        add(Map::Affine { weights: 13, biases: 5, each: 1 }, 520, true, 2)?;
        add(Map::Affine { weights: 6, biases: 0, each: 11 }, 66, false, 2)?;
        add(Map::AddChosen { each: 67 }, 4 * 67, false, 3)?;
        add(Map::Spread { each: 65 }, 3 * 65, true, 2)?;
        add(Map::Sum { slots: 5 }, 131, true, 3)?;
        add(Map::Slice { run: 26, at: 13, take: 13 }, 3 * 13, false, 2)?;
        add(Map::Slice { run: 9, at: 0, take: 4 }, 4 * 70, true, 2)?;
        add(Map::Concat { first: 17, behind: 5, runs: 3 }, 3 * 22, false, 2)?;
        add(Map::Concat { first: 70, behind: 9, runs: 1 }, 4 * 79, true, 2)?;
        add(Map::Concat { first: 48, behind: 16, runs: 0 }, 5 * 64, false, 3)?;
        add(Map::Dot { each: 70 }, 5, true, 2)?;
        add(Map::Dot { each: 517 }, 1, false, 3)?;
        add(Map::FromTiles, 70, true, 67)?;
        for each_own in [false, true] {
            add(Map::Adapters { each: 32, each_own }, 3 * 32, false, 5)?;
            add(Map::Adapters { each: 7, each_own }, 41 * 7, true, 3)?;
            add(Map::Rotate { head: 20, dims: 12, halves: true, each_own }, 3 * 20, false, 3)?;
            add(Map::Rotate { head: 8, dims: 8, halves: false, each_own }, 40 * 8, true, 3)?;
            add(
                Map::Temper { period: 3, offset: usize::from(each_own), each_own },
                77,
                each_own,
                5,
            )?;
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let gate = Map::Gate { function: Function::ClampedSilu, each: 1 };
        let each_own = true;
        for (name, map, residual) in [
            ("Act Xielu", Map::Act { function: Function::Xielu }, false),
            ("Affine", Map::Affine { weights: 4096, biases: 4096, each: 1 }, true),
            ("Gate ClampedSilu", gate, false),
            ("AddChosen", Map::AddChosen { each: 1024 }, false),
            ("Rotate", Map::Rotate { head: 128, dims: 64, halves: true, each_own }, false),
            ("FromTiles", Map::FromTiles, false),
            ("Temper", Map::Temper { period: 8192, offset: 1, each_own }, false),
        ] {
            list.add(format!("map {name} 4096"), MapSpec { map, cols: 4096, residual }, Size::ONE)?;
        }
        Ok(())
    }
}

/// Expected results, in f64.
mod oracle {
    use super::*;
    use crate::case::input;
    use crate::oracle::{gelu, silu};
    use crate::tiled::tiled;
    use kjit_kernels::heads::angles;
    use kjit_kernels::launch::Launch;

    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    fn of(function: Function, x: f64, p: [f64; 4]) -> f64 {
        match function {
            Function::Identity => x,
            Function::Silu => silu(x),
            Function::GeluTanh => gelu(x),
            Function::Relu => x.max(0.0),
            Function::ReluSquared => x.max(0.0).powi(2),
            Function::Sigmoid => sigmoid(x),
            Function::Tanh => x.tanh(),
            Function::Softplus => {
                if x > 30.0 {
                    x
                } else {
                    x.exp().ln_1p()
                }
            }
            Function::Clamp => x.clamp(-p[0], p[0]),
            Function::Above => (x - p[0]).max(0.0),
            Function::Sqrt => x.sqrt(),
            Function::SoftCap => p[0] * (x / p[0]).tanh(),
            Function::ClampedSilu => {
                let g = x.min(p[0]);
                g * sigmoid(1.702 * g)
            }
            Function::Xielu if x > 0.0 => p[0] * x * x + p[2] * x,
            Function::Xielu => (x.min(p[3]).exp_m1() - x) * p[1] + p[2] * x,
        }
    }

    /// Parameters of the function that have a visible effect.
    fn numbers(map: Map) -> [f32; 4] {
        match map {
            Map::Act { function: Function::Xielu }
            | Map::Gate { function: Function::Xielu, .. } => [0.9, 0.6, 0.5, -1e-6],
            Map::Affine { .. } | Map::Temper { .. } => [0.37, 0.0, 0.0, 0.0],
            _ => [1.75, 0.0, 0.0, 0.0],
        }
    }

    pub(super) fn case(
        spec: &MapSpec,
        launch: Launch,
        target: &Target,
        rows: usize,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let (cols, map, p) = (spec.cols, spec.map, numbers(spec.map));
        // Inputs near zeros of the functions, large inputs, and inputs that must not become NaN.
        let mut x = random.normals(rows * spec.x_cols(), 2.0);
        for (v, edge) in x.iter_mut().zip([0.0, 60.0, -60.0, 1e-6, -1e-4]) {
            *v = edge;
        }
        if map == (Map::Act { function: Function::Sqrt }) {
            x.iter_mut().for_each(|v| *v = v.abs());
        }
        let mut tiles = None;
        if map == Map::FromTiles {
            let made = tiled(rows, cols, random);
            x = made.values.iter().cycle().take(rows).flatten().map(|&v| v as f32).collect();
            tiles = Some(input("x", made.content()));
        }
        let experts = 9;
        let (a, b) = match map {
            Map::Affine { weights, biases, .. } => {
                (random.normals(weights, 1.0), random.normals(biases, 1.0))
            }
            Map::Gate { .. } | Map::Spread { .. } | Map::Concat { .. } | Map::Dot { .. } => {
                (random.normals(rows * spec.a_cols(), 2.0), vec![])
            }
            Map::AddChosen { each } => (vec![], random.normals(experts * each, 1.0)),
            Map::Adapters { each_own, .. } => {
                // Some factors are 0, also that of the first element, which must not become NaN.
                let mut factors = random.normals(rows * spec.a_cols(), 2.0);
                factors.iter_mut().step_by(3).for_each(|f| *f = 0.0);
                let first = spec.a_cols() * usize::from(each_own && rows > 1);
                if let Some(first) = factors.get_mut(first) {
                    *first = 0.0;
                }
                if let Some(first) = x.first_mut() {
                    *first = f32::INFINITY;
                }
                (factors, vec![])
            }
            Map::Rotate { dims, .. } => {
                let frequencies: Vec<f64> = (0..dims / 2).map(|i| 0.7f64.powi(i as i32)).collect();
                // Rows are at the fourth position and later, or anywhere in the first sixteen.
                (angles(&frequencies, 1.1, 16.max(rows + 4)), vec![])
            }
            _ => (vec![], vec![]),
        };
        let own =
            matches!(map, Map::Rotate { each_own: true, .. } | Map::Temper { each_own: true, .. });
        let slots = matches!(map, Map::Adapters { each_own: true, .. });
        let which: Vec<u32> = match map {
            Map::AddChosen { each } => {
                (0..rows * cols / each).map(|_| random.below(experts) as u32).collect()
            }
            _ if own || slots => (0..rows as u32).map(|r| (r + 1) % rows as u32).collect(),
            _ => vec![],
        };
        let position: Vec<u32> = match map {
            _ if own => (0..rows as u32).map(|s| (3 * s + 2) % 16).collect(),
            Map::Rotate { .. } | Map::Temper { .. } => vec![4],
            _ => vec![],
        };
        let residual = if spec.residual { random.normals(rows * cols, 1.0) } else { vec![] };
        let f = |v: &[f32], i: usize| f64::from(v[i]);
        let q = p.map(f64::from);
        let mut want = vec![];
        for row in 0..rows {
            let at = |c: usize| row * spec.x_cols() + c;
            let here = if own {
                position[which[row] as usize]
            } else {
                position.first().map_or(0, |p| p + row as u32)
            };
            for c in 0..cols {
                let y = match map {
                    Map::Act { function } => of(function, f(&x, at(c)), q),
                    Map::FromTiles => f(&x, at(c)),
                    Map::Affine { each, .. } => {
                        let own = |v: &[f32], none| {
                            if v.is_empty() { none } else { f(v, c / each % v.len()) }
                        };
                        q[0] * own(&a, 1.0) * f(&x, at(c)) + own(&b, 0.0)
                    }
                    Map::Gate { function, each } => {
                        let up = f(&x, at(c));
                        let up = if function == Function::ClampedSilu {
                            up.clamp(-q[0], q[0]) + 1.0
                        } else {
                            up
                        };
                        of(function, f(&a, row * (cols / each) + c / each), q) * up
                    }
                    Map::AddChosen { each } => {
                        let chosen = which[row * (cols / each) + c / each] as usize;
                        f(&x, at(c)) + f(&b, chosen * each + c % each)
                    }
                    Map::Spread { each } => {
                        f(&a, row * (cols / each) + c / each) * f(&x, at(c % each))
                    }
                    Map::Sum { slots } => (0..slots).map(|s| f(&x, at(s * cols + c))).sum(),
                    Map::Dot { each } => {
                        let i = row * spec.x_cols() + c * each;
                        (i..i + each).map(|i| f(&x, i) * f(&a, i)).sum()
                    }
                    Map::Concat { first, behind, runs } => {
                        let (g, e) = (c / (first + behind), c % (first + behind));
                        match e.checked_sub(first) {
                            None => f(&x, at(g * first + e)),
                            Some(_) if runs == 0 => 0.0,
                            Some(e) => f(&a, (row * runs + g % runs) * behind + e),
                        }
                    }
                    Map::Slice { run, at: first, take } => {
                        f(&x, at(c / take * run + first + c % take))
                    }
                    Map::Rotate { head, dims, halves, .. } => {
                        let (base, e, pairs) = (c - c % head, c % head, dims / 2);
                        let i = if halves { e % pairs } else { e / 2 };
                        let (one, two) = if halves { (i, i + pairs) } else { (2 * i, 2 * i + 1) };
                        let turned = |one: f64, two: f64| {
                            let t = 2 * (here as usize * pairs + i);
                            let (cos, sin) = (f(&a, t), f(&a, t + 1));
                            if e == i && halves || !halves && e % 2 == 0 {
                                one * cos - two * sin
                            } else {
                                one * sin + two * cos
                            }
                        };
                        if e < dims {
                            turned(f(&x, at(base + one)), f(&x, at(base + two)))
                        } else {
                            f(&x, at(c))
                        }
                    }
                    Map::Adapters { each, .. } => {
                        let slot = if slots { which[row] as usize } else { 0 };
                        match f(&a, slot * (cols / each) + c / each) {
                            0.0 => 0.0,
                            factor => factor * f(&x, at(c)),
                        }
                    }
                    Map::Temper { period, offset, .. } => {
                        let steps = (here as usize + offset) / period + 1;
                        f(&x, at(c)) * (1.0 + q[0] * (steps as f64).ln())
                    }
                };
                want.push(y + residual.get(row * cols + c).map_or(0.0, |&r| f64::from(r)));
            }
        }
        let some = |name, v: &[u32]| if v.is_empty() { CaseArg::Null } else { words(name, v) };
        let args = MapArgs {
            x: tiles.unwrap_or_else(|| floats("x", &x)),
            a: optional("a", &a),
            b: optional("b", &b),
            which: some("which", &which),
            position: some("position", &position),
            residual: optional("residual", &residual),
            y: output("y", Storage::F32, want, SINGLE),
            p0: CaseArg::F32(p[0]),
            p1: CaseArg::F32(p[1]),
            p2: CaseArg::F32(p[2]),
            p3: CaseArg::F32(p[3]),
        };
        let name = format!(
            "map {map:?} · {rows} × {cols}{}",
            if spec.residual { ", residual" } else { "" }
        );
        Case::of(name, spec, target, launch, args)
    }
}
