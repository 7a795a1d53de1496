//! All that a process has started, also what has left its group (`setsid`): read off `/proc`, where
//! every process names its parent. A compiler process is a *subreaper*: what loses its parent below
//! it becomes its own child, so nothing of a compile can step out of this tree while its root
//! lives.

use std::collections::HashMap;

/// Rounds after which no more is killed: whatever starts processes faster than that has won.
const MOST_ROUNDS: u32 = 1000;

/// Makes this process the one to which orphans below it come.
pub(crate) fn adopt_orphans() {
    // SAFETY: numbers only. A kernel that refuses leaves things as they were.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// Kills all that this process has started, and what those have, until nothing of it runs. The
/// process itself must not start more meanwhile.
pub(crate) fn end_below(root: i32) {
    for _ in 0..MOST_ROUNDS {
        let running = running_below(root);
        if running.is_empty() {
            return;
        }
        for pid in running {
            // SAFETY: numbers only. The process was seen a moment ago; its number is free again
            // only when its parent has waited for it, and given to another only after all others
            // were.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// The processes below this one that have not ended.
fn running_below(root: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<(i32, bool)>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // One that ends meanwhile is none.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // Its name stands in brackets and may hold anything.
        let mut words = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
        let (state, parent) =
            (words.next().unwrap_or_default(), words.next().and_then(|p| p.parse().ok()));
        if let Some(parent) = parent {
            children.entry(parent).or_default().push((pid, !matches!(state, "Z" | "X")));
        }
    }
    let (mut below, mut running) = (vec![root], vec![]);
    while let Some(pid) = below.pop() {
        for (child, runs) in children.remove(&pid).unwrap_or_default() {
            below.push(child);
            running.extend(runs.then_some(child));
        }
    }
    running
}
