//! Cases and samples of `tiles`.

use crate::case::{Case, CaseArg, floats, optional, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::Storage;
use crate::oracle::{EPS, aux, prologues};
use crate::samples::{PROMPT, Samples};
use crate::tiled::{ROUNDED, want_panels, want_tiled, want_turned};
use kjit_engine::Target;
use kjit_kernels::activations::Prologue;
use kjit_kernels::tiles::{TileLayout, TilesArgs, TilesSpec};
use kjit_kernels::variant::Wave;
use kjit_kernels::{Family, Size, SpecError};

impl Cases for TilesSpec {
    fn case(
        &self,
        target: &Target,
        _: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let source: Vec<u32> =
            if self.gather { (0..size.tokens as u32).rev().collect() } else { vec![] };
        of(self, target, size.tokens, &source, random)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        let tuning = Some(Wave { wave });
        for (cols, rows, prologue, gather, form) in [
            (96, 5, Prologue::None, false, TileLayout::Tiles),
            (2500, 3, Prologue::Norm, false, TileLayout::Tiles),
            (576, 9, Prologue::Norm, true, TileLayout::Tiles),
            (1000, 3, Prologue::Silu, false, TileLayout::Tiles),
            (161, 3, Prologue::Gelu, false, TileLayout::Tiles),
            (96, 5, Prologue::None, false, TileLayout::Panels),
            (1056, 11, Prologue::Norm, false, TileLayout::Panels),
            (96, 5, Prologue::None, false, TileLayout::Turned),
            (1056, 70, Prologue::Norm, false, TileLayout::Turned),
        ] {
            let source: Vec<u32> = if gather { vec![4, u32::MAX, 0, 8, 4] } else { vec![] };
            into.push(of(
                &TilesSpec { cols, prologue, gather, form, tuning },
                target,
                rows,
                &source,
                random,
            )?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let size = Size { tokens: PROMPT, past: 0 };
        for (cols, prologue, gather) in [
            (4096, Prologue::None, false),
            (4096, Prologue::Norm, false),
            (14336, Prologue::Silu, false),
            (14336, Prologue::Gelu, false),
            (2048, Prologue::Norm, true),
        ] {
            let spec = TilesSpec { cols, prologue, gather, form: TileLayout::Tiles, tuning: None };
            let gathered = if gather { " gathered" } else { "" };
            list.add(format!("tiles {cols} {prologue:?}{gathered}"), spec, size)?;
        }
        for wave in list.other_waves() {
            let (prologue, tuning) = (Prologue::Norm, Some(Wave { wave }));
            let spec =
                TilesSpec { cols: 4096, prologue, gather: false, form: TileLayout::Tiles, tuning };
            list.add(format!("tiles 4096 Norm @ wave {wave}"), spec, size)?;
        }
        Ok(())
    }
}

/// A case with `rows` rows of values. `source` selects rows.
fn of(
    spec: &TilesSpec,
    target: &Target,
    rows: usize,
    source: &[u32],
    random: &mut Random,
) -> Result<Case, SpecError> {
    let TilesSpec { cols, prologue: kind, gather, form, .. } = *spec;
    let x = random.activations(rows * cols);
    let aux = aux(kind, rows, cols, random);
    let inputs = prologues(kind, cols, &x, &aux);
    let want: Vec<Option<Vec<f64>>> = match gather {
        true => source.iter().map(|&s| inputs.get(s as usize).cloned()).collect(),
        false => inputs.iter().cloned().map(Some).collect(),
    };
    let y = match form {
        TileLayout::Tiles => want_tiled(&want, cols),
        TileLayout::Panels => want_panels(&want, cols),
        TileLayout::Turned => want_turned(&want, cols),
    };
    let args = TilesArgs {
        x: floats("x", &x),
        aux: optional("aux", &aux),
        y: output("y", Storage::F16, y, ROUNDED),
        source: if gather { words("source", source) } else { CaseArg::Null },
        eps: CaseArg::F32(EPS),
    };
    let (gathered, form) = (if gather { ", gathered" } else { "" }, form.word());
    let name = format!("tiles {rows} × {cols}, {kind:?}{gathered}{form}");
    let launch = spec.launch(target, 1, Size { tokens: want.len(), past: 0 })?;
    Case::of(name, spec, target, launch, args)
}
