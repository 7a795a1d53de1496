//! Speed of a full cache.
//!
//! Fills a directory in `TMPDIR` with `--entries` (100,000) small entries and 300 of 50 kB. Then
//! prints the times to open it and to look entries up, the times of an empty cache, and the
//! machine. It fails if opening takes more than 5 ms or a verified hit of 50 kB more than 100 µs.
//! The numbers of calls are fixed and large: it prints medians and 99th percentiles.

use crate::{Options, Result};
use std::convert::Infallible;
use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use kjit_cache::{Artefact, BuildKey, Cache, Config, Entry, FORMAT, Key, Scope};

const LARGE: usize = 50_000;
const LARGE_COUNT: usize = 300;
const SMALL: usize = 1_000;
const OPEN_LIMIT: Duration = Duration::from_millis(5);
const HIT_LIMIT: Duration = Duration::from_micros(100);

fn key(number: usize) -> BuildKey {
    let source = Key::builder("bench")
        .content("source", number.to_le_bytes())
        .field("target", "sm_90a")
        .sorted("constant", [("K", "4096"), ("N", "14336"), ("WARPS", "8")])
        .finish();
    BuildKey::new(&source, |key| key.field("compiler", [7; 32]).field("flags", "--use_fast_math"))
}

fn artefact(bytes: usize) -> Artefact {
    Artefact::new(vec![0x5a; bytes])
        .meta("kernel", "matvec")
        .meta("registers", "64")
        .need("driver", "13.0")
}

/// Writes an entry to its path in the cache without syncing, because filling is not measured.
fn plant(dir: &Path, number: usize, bytes: usize) -> std::io::Result<()> {
    let key = key(number);
    let source = key.source().digest().hex();
    let below = dir.join(format!("v{FORMAT}/e")).join(&source[..2]).join(&source);
    DirBuilder::new().recursive(true).mode(0o700).create(&below)?;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(below.join(key.digest().hex()))?;
    std::io::Write::write_all(&mut file, &Entry::encode(&key, &artefact(bytes), number as u64))
}

/// Median and 99th percentile of `runs` calls.
fn time(runs: usize, mut call: impl FnMut(usize)) -> (Duration, Duration) {
    let mut times: Vec<Duration> = (0..runs)
        .map(|run| {
            let start = Instant::now();
            call(run);
            start.elapsed()
        })
        .collect();
    times.sort();
    (times[runs / 2], times[runs * 99 / 100])
}

fn open(dir: &Path) -> Cache {
    Cache::open(Config::for_app("kjit-bench").ignore_environment().dir(dir).max_bytes(u64::MAX))
}

struct Figures {
    open: Duration,
    hit: Duration,
}

fn measure(out: &mut dyn Write, name: &str, dir: &Path, large_from: usize) -> Result<Figures> {
    let (open_time, open_99) = time(50, |_| assert!(open(dir).get(&key(large_from)).is_some()));
    let cache = open(dir);
    let (bare_open, bare_99) = time(50, |_| drop(open(dir)));
    let keys: Vec<BuildKey> = (large_from..large_from + LARGE_COUNT).map(key).collect();
    keys.iter().for_each(|key| assert!(cache.get(key).is_some()));
    let (hit, hit_99) = time(3_000, |run| assert!(cache.get(&keys[run % keys.len()]).is_some()));
    let sources: Vec<Key> = keys.iter().map(|key| key.source().clone()).collect();
    let by_source = |run: usize| {
        cache.find(&sources[run % sources.len()], Scope::Everywhere, |_| true).is_some()
    };
    let (find, find_99) = time(3_000, |run| assert!(by_source(run)));
    let absent: Vec<BuildKey> = (usize::MAX - 300..usize::MAX).map(key).collect();
    let (miss, miss_99) =
        time(3_000, |run| assert!(cache.get(&absent[run % absent.len()]).is_none()));
    let all = Instant::now();
    let fresh = open(dir);
    keys.iter().for_each(|key| assert!(fresh.get(key).is_some()));
    let all = all.elapsed();
    let (publish, publish_99) = time(50, |run| {
        let key = key(usize::MAX / 2 + run);
        let Ok(_) = cache
            .get_or_make::<Infallible, _>(&key, Duration::from_secs(5), || Ok(artefact(LARGE)));
    });
    let walk = Instant::now();
    let stat = cache.stat();
    let walk = walk.elapsed();
    let layer = stat.layers.first().ok_or("a cache without a layer")?;
    writeln!(out, "{name}: {} entries, {:.1} MB", layer.entries, layer.bytes as f64 / 1e6)?;
    for (what, (median, p99)) in [
        ("open", (bare_open, bare_99)),
        ("open and one hit of 50 kB", (open_time, open_99)),
        ("hit of 50 kB, verified, warm", (hit, hit_99)),
        ("find by source key, 50 kB, verified, warm", (find, find_99)),
        ("miss", (miss, miss_99)),
        ("empty make, synced and published", (publish, publish_99)),
    ] {
        writeln!(out, "  {what:<44} {median:>10.1?}  p99 {p99:>10.1?}")?;
    }
    writeln!(out, "  {:<44} {all:>10.1?}", format!("open and {LARGE_COUNT} hits of 50 kB"))?;
    writeln!(out, "  {:<44} {walk:>10.1?}", "stat of all entries")?;
    writeln!(out, "  warnings: {:?}", cache.warnings())?;
    Ok(Figures { open: bare_open, hit })
}

fn machine(out: &mut dyn Write, dir: &Path) -> Result<()> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let of = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(": ")).map_or("unknown", |(_, value)| value).to_owned()
    };
    let sha = if of("flags").split(' ').any(|flag| flag == "sha_ni") { "with" } else { "without" };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mounts = read("/proc/mounts");
    let mount = mounts
        .lines()
        .filter_map(|line| line.split(' ').skip(1).take(2).collect::<Vec<_>>().try_into().ok())
        .filter(|[at, _]: &[&str; 2]| dir.starts_with(at))
        .max_by_key(|[at, _]| at.len());
    let file_system = mount.map_or("unknown", |[_, kind]| kind);
    writeln!(
        out,
        "machine: {}, {cores} cores, {sha} SHA instructions, {file_system}",
        of("model name")
    )?;
    Ok(writeln!(out, "kernel:  {}", read("/proc/sys/kernel/osrelease").trim())?)
}

/// Runs the bench.
///
/// # Errors
/// The directory cannot be filled or a limit is exceeded.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<()> {
    let base = std::env::temp_dir().join(format!("kjit-cache-bench-{}", std::process::id()));
    let held = filled(options, &base, out);
    let removed = std::fs::remove_dir_all(&base);
    let held = held?;
    removed?;
    writeln!(
        out,
        "limits:  open {OPEN_LIMIT:?}, hit {HIT_LIMIT:?}: {}",
        if held { "held" } else { "MISSED" }
    )?;
    if held { Ok(()) } else { Err("a limit was missed".into()) }
}

fn filled(options: &Options, base: &Path, out: &mut dyn Write) -> Result<bool> {
    for (dir, small) in [("empty", 0), ("full", options.entries)] {
        let dir = base.join(dir);
        (0..small).try_for_each(|number| plant(&dir, number, SMALL))?;
        (small..small + LARGE_COUNT).try_for_each(|number| plant(&dir, number, LARGE))?;
    }
    machine(out, base)?;
    measure(out, "nearly empty", &base.join("empty"), 0)?;
    let full = measure(out, "full", &base.join("full"), options.entries)?;
    Ok(full.open < OPEN_LIMIT && full.hit < HIT_LIMIT)
}
