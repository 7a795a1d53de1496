//! Data-parallel primitives (DPP): lanes of a source are exchanged before use.

use crate::target::Target;
use crate::text::Text;
use crate::width::LANES;
use crate::width::LaneValues64;

/// The lane that each lane reads.
#[derive(Clone, Debug)]
pub struct Exchange {
    from: [Option<u8>; LANES],
    /// Lanes that the row and bank masks enable for writing.
    enabled: u64,
    /// Whether a lane without a source lane reads 0. If false, it keeps its value.
    zero: bool,
    /// Whether source lanes that EXEC disables are still read.
    inactive: bool,
    /// Number of lanes of the wave.
    lanes: usize,
}

impl Exchange {
    /// Decodes the modifiers of `text`.
    pub fn decode(target: &Target, text: &Text) -> Result<Exchange, String> {
        let number = |key: &str| text.value(key).and_then(|v| v.parse::<usize>().ok());
        let lanes = target.wave as usize;
        let mut from = [None; LANES];
        for (l, slot) in from.iter_mut().enumerate().take(lanes) {
            let (row, at) = (l & !15, l & 15);
            *slot = if let Some(quad) = text.list("quad_perm") {
                Some((l & !3) + *quad.get(l & 3).ok_or("quad_perm needs four numbers")? as usize)
            } else if let Some(n) = number("row_ror") {
                Some(row + ((at + 16 - n) & 15))
            } else if let Some(n) = number("row_shl") {
                (at + n < 16).then_some(l + n)
            } else if let Some(n) = number("row_shr") {
                (at >= n).then(|| l - n)
            } else if let Some(n) = number("row_xmask") {
                Some(row + (at ^ n))
            } else if let Some(n) = number("row_share") {
                Some(row + n)
            } else if text.has("row_mirror") {
                Some(row + 15 - at)
            } else if text.has("row_half_mirror") {
                Some(row + (at & 8 | 7 - (at & 7)))
            } else {
                return Err("an exchange of lanes that is unknown".into());
            }
            .map(|n| n as u8);
        }
        let mask = |key: &str| {
            text.value(key).map_or(Ok(15), |v| crate::text::integer(v).ok_or(format!("{key}:{v}")))
        };
        let (rows, banks) = (mask("row_mask")?, mask("bank_mask")?);
        let on = |l: &usize| rows >> (l >> 4 & 3) & 1 == 1 && banks >> (l >> 2 & 3) & 1 == 1;
        let enabled = (0..lanes).filter(on).fold(0, |m, l| m | 1 << l);
        Ok(Exchange {
            from,
            enabled,
            zero: text.value("bound_ctrl").is_some(),
            inactive: text.value("fi") == Some("1"),
            lanes,
        })
    }

    fn source(&self, lane: usize, exec: u64) -> Option<usize> {
        self.from[lane].map(usize::from).filter(|&f| self.inactive || exec >> f & 1 == 1)
    }

    /// Lanes that are written.
    pub fn writes(&self, exec: u64) -> u64 {
        let known = |l: &usize| self.zero || self.source(*l, exec).is_some();
        self.enabled & (0..self.lanes).filter(known).fold(0, |m, l| m | 1 << l)
    }

    /// Exchanges the lanes. Returns the lanes that have undefined bits.
    pub fn apply(&self, exec: u64, value: &mut LaneValues64, bad: &mut LaneValues64) -> u64 {
        let (old, old_bad) = (*value, *bad);
        let mut any = 0;
        for l in 0..self.lanes {
            (value[l], bad[l]) = self.source(l, exec).map_or((0, 0), |f| (old[f], old_bad[f]));
            any |= u64::from(bad[l] != 0) << l;
        }
        any
    }
}
