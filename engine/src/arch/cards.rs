//! One card of each architecture with the peak rates that its maker states: what a roofline of a kernel that no card has run is drawn
//! against. No card reaches them; which part of them it reaches is what a measurement on a card is for.

/// A card by its data sheet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// Its architecture.
    pub arch: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Bytes of memory a nanosecond (GB/s).
    pub gb_per_s: f64,
    /// 10¹² operations a second on halves with sums in f32: of the matrix unit, dense, where there is one.
    pub tflop_per_s: f64,
}

const fn card(arch: &'static str, name: &'static str, gb_per_s: f64, tflop_per_s: f64) -> Card {
    Card { arch, name, gb_per_s, tflop_per_s }
}

/// Data sheets' figures, one card an architecture.
pub const CARDS: &[Card] = &[
    card("sm_75", "T4", 320.0, 65.0),
    card("sm_80", "A100 80 GB", 2039.0, 312.0),
    card("sm_86", "A40", 696.0, 149.7),
    card("sm_89", "L40", 864.0, 181.0),
    card("sm_90", "H200", 4800.0, 989.0),
    card("sm_100", "B200", 8000.0, 2250.0),
    card("gfx900", "RX Vega 64", 484.0, 25.3),
    card("gfx906", "MI50", 1024.0, 26.5),
    card("gfx908", "MI100", 1229.0, 184.6),
    card("gfx90a", "MI210", 1638.0, 181.0),
    card("gfx942", "MI300X", 5300.0, 1307.4),
    card("gfx950", "MI355X", 8000.0, 2516.6),
    card("gfx1010", "RX 5700 XT", 448.0, 19.5),
    card("gfx1030", "RX 6900 XT", 512.0, 46.1),
    card("gfx1100", "RX 7900 XTX", 960.0, 122.8),
    card("gfx1101", "RX 7800 XT", 624.0, 74.7),
    card("gfx1102", "RX 7600", 288.0, 43.5),
    card("gfx1103", "Radeon 780M, DDR5-5600", 89.6, 16.6),
    card("gfx1150", "Radeon 890M, LPDDR5X-7500", 120.0, 23.8),
    card("gfx1151", "Radeon 8060S", 256.0, 59.4),
    card("gfx1200", "RX 9060 XT", 320.0, 102.6),
    card("gfx1201", "RX 9070 XT", 640.0, 194.6),
];

impl super::Arch {
    /// A card of this architecture, where one is listed.
    #[must_use]
    pub fn card(&self) -> Option<&'static Card> {
        CARDS.iter().find(|c| c.arch == self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ARCHS, Vendor};

    #[test]
    fn every_amd_architecture_has_a_card_and_every_card_an_architecture() {
        assert!(ARCHS.iter().filter(|a| a.vendor == Vendor::Amd).all(|a| a.card().is_some()));
        for card in super::CARDS {
            assert!(ARCHS.iter().any(|a| a.id == card.arch), "{}", card.name);
            assert!(card.gb_per_s > 50.0 && card.tflop_per_s > 10.0);
        }
    }
}
