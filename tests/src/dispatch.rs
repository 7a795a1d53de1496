//! The cost of giving a token's work to a card, added to the bounds of memory and instructions: a
//! graph has a node for each launch; one launch has a grid barrier for each step that needs one.

use kjit_engine::Target;
use kjit_kernels::tuning::Shipped;
use kjit_model::catalogue::Common;
use kjit_model::gpu::plan::{Request, plan};
use kjit_model::session::{OpenOptions, Persistence};

/// Costs in µs, each with its lowest and highest plausible value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// A node of a graph.
    pub node: [f64; 3],
    /// A grid barrier.
    pub meet: [f64; 3],
    /// Bytes per second that can be read, as a fraction of the stated rate.
    pub reads: f64,
    /// Whether they were measured on a card (`scripts/cards --bounds`).
    pub measured: bool,
}

/// Reports of cards: architecture, GB/s, µs of a node, of a launch, of a barrier.
const MEASURED: &str = include_str!("../../benches/results/amd-measured.tsv");

/// The costs of an architecture with this stated bandwidth in GB/s.
///
/// - A node: 3.85 µs on gfx1100 (ROCm issue 10834; Vulkan takes 0.88 there), 4.5 on MI300X.
/// - A barrier: on MI300X others went from 7.8 µs to 0.9; an H200 takes 1.15.
/// - Reads: cards with GDDR reach 0.86 of the stated rate in others' decoding (9070 XT, Vulkan),
///   cards with HBM less; an H200's reads reach 0.97, a whole model's 0.83 of that.
#[must_use]
pub fn costs(arch: &str, gb_per_s: f64) -> Costs {
    if let Some([read, node, _, meet]) = measured(MEASURED, arch) {
        let same = |cost| [cost; 3];
        return Costs {
            node: same(node),
            meet: same(meet),
            reads: read / gb_per_s,
            measured: true,
        };
    }
    let hbm = matches!(arch, "gfx900" | "gfx906" | "gfx908" | "gfx90a" | "gfx942" | "gfx950");
    let several_dies = matches!(arch, "gfx942" | "gfx950");
    Costs {
        node: if several_dies { [0.88, 4.5, 6.0] } else { [0.88, 3.85, 5.0] },
        meet: if several_dies { [0.9, 3.0, 7.8] } else { [0.9, 1.5, 4.0] },
        reads: if hbm { 0.70 } else { 0.83 },
        measured: false,
    }
}

/// The last row of an architecture in a text of reports.
fn measured(text: &str, arch: &str) -> Option<[f64; 4]> {
    let mut rows = text.lines().filter(|line| !line.starts_with('#'));
    let cells = rows.rfind(|line| line.split('\t').next() == Some(arch))?.split('\t').skip(1);
    let numbers: Vec<f64> = cells.filter_map(|cell| cell.parse().ok()).collect();
    numbers.try_into().ok().filter(|all: &[f64; 4]| all.iter().all(|n| n.is_finite() && *n >= 0.0))
}

/// Launches of a token, and barriers of a token in one launch (`None` where it cannot be one).
///
/// # Errors
/// The model cannot be planned, as text.
pub fn counts(model: &Common, layers: u32, arch: &str) -> Result<(usize, Option<usize>), String> {
    let graph = model.with_layers(layers).map_err(|e| e.to_string())?;
    let target = Target::parse(arch).map_err(|e| e.to_string())?;
    let options = OpenOptions { persistent: Persistence::On, ..OpenOptions::new(4096) };
    let (graph, target, options) = (&graph, &target, &options);
    let made = plan(&Request { graph, target, options, keep: &[], tuned: &Shipped });
    let made = made.map_err(|e| e.to_string())?;
    let meets =
        made.persistent.first().map(|one| one.instructions.iter().filter(|i| i.meets).count());
    // The choice of the next token is a launch in both forms.
    Ok((made.decode.launches.len() + 1, meets))
}

/// Microseconds of a token as a graph and as one launch: `work` and the cost of each, of these
/// three: `0` the lowest, `1` the likely, `2` the highest.
#[must_use]
pub fn forms(
    work: f64,
    counts: (usize, Option<usize>),
    costs: &Costs,
    which: usize,
) -> [Option<f64>; 2] {
    let at = |cost: &[f64; 3]| cost.get(which).copied().unwrap_or(f64::NAN);
    let graph = work + counts.0 as f64 * at(&costs.node);
    let one = counts.1.map(|meets| work + 2.0 * at(&costs.node) + meets as f64 * at(&costs.meet));
    [Some(graph), one]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_pays_for_launches_and_one_launch_for_barriers() {
        let costs = costs("gfx1100", 960.0);
        let [graph, one] = forms(4808.0, (194, Some(130)), &costs, 1);
        // 208 tok/s by memory become 180.
        assert!((1e6 / graph.unwrap() - 180.0).abs() < 0.5, "{graph:?}");
        assert!((one.unwrap() - (4808.0 + 7.7 + 195.0)).abs() < 1e-6, "{one:?}");
        assert_eq!(forms(1.0, (194, None), &costs, 1)[1], None);
    }

    #[test]
    fn a_report_replaces_what_was_assumed() {
        let text = "# arch\ngfx1100\t800\t3.1\t5.0\t1.2\ngfx1100\t812\t3.7\t5.1\t1.3\ngfx90a\tno";
        assert_eq!(measured(text, "gfx1100"), Some([812.0, 3.7, 5.1, 1.3]));
        assert_eq!(measured(text, "gfx90a"), None);
        assert_eq!(measured(text, "gfx110"), None);
        assert_eq!(measured("gfx1100\t1\t2\t3\tNaN", "gfx1100"), None);
    }
}
