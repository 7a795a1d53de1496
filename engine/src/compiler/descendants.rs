//! Finds and kills all descendants of a process, including processes that left its process group
//! (`setsid`). In `/proc` every process names its parent. A compiler process is a *subreaper*:
//! orphans below it become its children, so no process of a compile can leave this tree while its
//! root lives.

use std::collections::HashMap;

/// Maximum number of rounds. If processes start faster than this, they cannot be killed.
const MOST_ROUNDS: u32 = 1000;

/// Sets this process as the parent of orphaned descendants.
pub(crate) fn adopt_orphans() {
    // SAFETY: passes numbers only. If the kernel refuses, nothing changes.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// Kills all descendants of a process until none is running. The process must not start new ones
/// meanwhile.
pub(crate) fn kill_descendants(root: i32) {
    for _ in 0..MOST_ROUNDS {
        let running = running_below(root);
        if running.is_empty() {
            return;
        }
        for pid in running {
            // SAFETY: passes numbers only. The process was running a moment ago. Its pid becomes
            // free only after its parent has waited for it, and is reused only after all other
            // numbers.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// The descendants of a process that have not ended.
fn running_below(root: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<(i32, bool)>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // A process that ends meanwhile is not counted.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The process name is in brackets and may contain any character.
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
