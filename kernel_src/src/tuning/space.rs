//! What is worth trying, by family: small lists, since every candidate is compiled, checked and timed.

use super::Tuning;
use super::families::{BATCHES, PLACES};
use crate::attend::AttendTuning;
use crate::experts::ExpertFinish;
use crate::flash::FlashTuning;
use crate::gemm::{GemmSpec, GemmTuning};
use crate::layout::Layout;
use crate::matvec::MatvecTuning;
use crate::spec::Spec;
use crate::strips::StripsSpec;
use kjit_engine::{MatrixUnit, Target, Vendor};

/// Candidates, some of which may not fit the target.
pub(super) fn candidates(spec: &Spec, target: &Target) -> Vec<Tuning> {
    match spec {
        Spec::Matvec(s) => {
            let layouts = s.segments.iter().filter_map(|g| Layout::new(g.format, s.cols).ok());
            let units = layouts.map(|l| l.units()).max().unwrap_or(1);
            let lists = if s.finish.gated() { 2 } else { 1 };
            matvec(target, units, lists * s.columns)
        }
        Spec::Experts(s) => {
            let units = Layout::new(s.format, s.cols).map_or(1, |l| l.units());
            let lists = if matches!(s.finish, ExpertFinish::Silu | ExpertFinish::Gelu) { 2 } else { 1 };
            matvec(target, units, lists)
        }
        Spec::Gemm(s) => gemm(s, target),
        Spec::Strips(_) => StripsSpec::space().into_iter().map(Tuning::Strips).collect(),
        Spec::Attend(_) => AttendTuning::space(target).into_iter().map(Tuning::Attend).collect(),
        Spec::Flash(_) => flash(target),
        _ => vec![],
    }
}

/// Products with vectors, of rows of `units` units, `times` lists or columns of which a lane has in flight at once.
fn matvec(target: &Target, units: usize, times: usize) -> Vec<Tuning> {
    let mut all = vec![];
    for &wave in target.waves() {
        for (block, blocks_per_unit, alone) in PLACES {
            if alone && target.vendor() == Vendor::Amd {
                continue;
            }
            // Narrower ones for rows that give a wave no work; wider ones were 30 to 40 % behind on an H200.
            for team in [wave / 4, wave / 2, wave] {
                let steps = units.div_ceil(team as usize) as u32;
                if team < wave / 2 && units > wave as usize || team as usize / 2 >= units {
                    continue;
                }
                for (rows, batch) in BATCHES {
                    // No more in flight than there is, nor than eight at once, the most that was ever best.
                    if batch > steps.next_power_of_two() || (rows * batch) as usize * times > 8 {
                        continue;
                    }
                    let t = MatvecTuning { wave, block, team, rows, batch, blocks_per_unit, alone };
                    all.push(Tuning::Matvec(t));
                }
            }
        }
    }
    all
}

fn gemm(spec: &GemmSpec, target: &Target) -> Vec<Tuning> {
    let tokens = spec.tokens.next_power_of_two().max(16) as u32;
    let default = spec.default_tuning(target);
    let fits = |t: &GemmTuning| {
        let groups = matches!(t, GemmTuning::Groups { .. });
        // With warp groups the other kernel was never near from 33 tokens on.
        let kind = target.arch().matrix != MatrixUnit::Wgmma || groups || tokens <= 32;
        // Experts' tiles are those of the grouping: all products of a layer have the same.
        let tile = if spec.experts > 1 {
            default.tokens() == t.tokens()
        } else {
            t.tokens() <= tokens && t.tokens() >= (tokens / 2).min(64)
        };
        kind && tile
    };
    GemmSpec::space(target).into_iter().filter(fits).map(Tuning::Gemm).collect()
}

fn flash(target: &Target) -> Vec<Tuning> {
    let groups = [32, 64, 128].map(|keys| FlashTuning::Groups { keys });
    // Where there are warp groups, the other kernel was never near for the heads that they cover.
    let waves = if target.arch().matrix == MatrixUnit::Wgmma { vec![] } else { FlashTuning::space(target) };
    groups.into_iter().chain(waves).map(Tuning::Flash).collect()
}
