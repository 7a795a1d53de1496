//! The memory that can be allocated, on the GPU and page-locked in the system.

use super::{Bench, Figure};
use kjit_engine::{DeviceBuffer, PinnedBuffer};

/// Maximum page-locked bytes of the search, unless the GPU shares the system's memory.
const LOCKED: u64 = 8 << 30;
/// The limit of a quick report.
const QUICK: u64 = 1 << 30;
/// The smallest piece of a search.
const MIN_PIECE: u64 = 1 << 20;

pub(super) fn room(bench: &Bench<'_>) -> Vec<Figure> {
    let names = ["card memory: total", "card memory: free by the driver", "card memory: allocated"];
    let locked = "system memory: page-locked";
    let Ok((free, total)) = bench.device.memory() else {
        let none = |name| Figure::none(name, "GiB", "the driver does not report it");
        return names.into_iter().chain([locked]).map(none).collect();
    };
    let shares = bench.device.info().integrated;
    let system = super::super::open::system_memory();
    // An integrated GPU also uses the system's memory, which must not be used up.
    let most = if shares { (free.max(system) / 2).max(MIN_PIECE) } else { total };
    let got = on_card(bench, most);
    let note = match (shares, got >= most) {
        (true, true) => "the search ended at half of the system's free memory",
        (true, false) => "includes the system's memory",
        _ => "",
    };
    let wish = if bench.quick { QUICK } else { LOCKED };
    let wish = if shares && !bench.quick { system / 2 } else { wish.min(system / 2) };
    // A simulated GPU with little memory has small pieces.
    let wish = wish.min(4 * total).max(MIN_PIECE);
    let pinned = page_locked(bench, wish);
    let ended = if pinned >= wish { "at least this much: the search ended here" } else { "" };
    let [all, said, had] = names;
    vec![
        Figure::new(all, gib(total), "GiB"),
        Figure::new(said, gib(free), "GiB"),
        Figure::new(had, gib(got), "GiB").note(note),
        Figure::new(locked, gib(pinned), "GiB").note(ended),
    ]
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

/// Allocates and fills pieces. After a refusal, the next piece is half as large. Returns the bytes.
fn search<T>(most: u64, allocate: &dyn Fn(usize) -> Option<T>) -> u64 {
    let (mut kept, mut got) = (vec![], 0);
    let mut piece = (most / 8).max(MIN_PIECE);
    while piece >= MIN_PIECE && got < most {
        let bytes = piece.min(most - got);
        match usize::try_from(bytes).ok().and_then(allocate) {
            Some(one) => {
                kept.push(one);
                got += bytes;
            }
            None => piece /= 2,
        }
    }
    got
}

fn on_card(bench: &Bench<'_>, most: u64) -> u64 {
    search(most, &|bytes| -> Option<DeviceBuffer<u8>> {
        let memory = bench.device.buffer::<u8>(bytes).ok()?;
        // Some drivers allocate memory only when it is written.
        bench.stream.fill(&memory, 0).and_then(|()| bench.stream.synchronize()).ok()?;
        Some(memory)
    })
}

fn page_locked(bench: &Bench<'_>, most: u64) -> u64 {
    search(most, &|bytes| -> Option<PinnedBuffer<u8>> { bench.device.pinned::<u8>(bytes).ok() })
}
