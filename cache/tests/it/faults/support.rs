//! Helpers of the fault tests: child processes, the preloaded library, small file systems.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use kjit_cache::{Artefact, BuildKey, Cache, Config, Key};

/// A user id that is not in any passwd file.
pub const NOBODY_AT_ALL: u32 = 54_321;
pub const SMALL_CAP: u64 = 85_000;
pub const DEADLINE: Duration = Duration::from_secs(30);

pub fn key(name: &str) -> BuildKey {
    let source = Key::builder("fault").content("source", name).finish();
    BuildKey::new(&source, |key| key.field("maker", "fault test"))
}

/// The expected payload of the key's artefact.
pub fn payload(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(20_000).collect()
}

pub fn artefact(name: &str) -> Artefact {
    Artefact::new(payload(name)).meta("name", name)
}

pub fn open(dir: &Path) -> Cache {
    Cache::open(Config::for_app("fault").ignore_environment().dir(dir))
}

/// A cache that can hold four entries.
pub fn open_small(dir: &Path) -> Cache {
    Cache::open(Config::for_app("fault").ignore_environment().dir(dir).max_bytes(SMALL_CAP))
}

/// A temporary folder that other users may traverse, like `/tmp`.
pub fn scratch() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    dir
}

/// This test binary, running `child::entry` in `mode`.
pub fn child(mode: &str, dir: &Path) -> Command {
    child_of(&std::env::current_exe().unwrap(), mode, dir)
}

pub fn child_of(exe: &Path, mode: &str, dir: &Path) -> Command {
    let mut command = Command::new(exe);
    command.args([
        "it::faults::child::entry",
        "--exact",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
        "-q",
    ]);
    command
        .env("FAULT_MODE", mode)
        .env("FAULT_DIR", dir)
        .env("FAULT_KEY", "k")
        .stdin(Stdio::null());
    command
}

/// Runs the command to its end and asserts that it succeeds. Returns stdout and stderr.
pub fn finish(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", describe(&output));
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub fn describe(output: &Output) -> String {
    format!(
        "{} signal {:?}\n{}\n{}",
        output.status,
        output.status.signal(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Adds the preloaded library to a command.
pub trait Shim {
    fn shim(&mut self, rules: &str) -> &mut Self;
}

impl Shim for Command {
    fn shim(&mut self, rules: &str) -> &mut Self {
        self.env("LD_PRELOAD", shim_path()).env("SHIM_RULES", rules)
    }
}

fn shim_path() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        let dir = scratch();
        let path = dir.path().join("shim.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/faults/shim.c");
        // `cc` is available: linking a Rust program needs it too.
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&path)
            .arg(&source)
            .arg("-ldl")
            .status();
        assert!(
            status.expect("cc must be installed").success(),
            "cc could not build {}",
            source.display()
        );
        (dir, path)
    });
    path
}

/// Polls until `ready` returns true, for ten seconds at most.
pub fn wait_for(what: &str, ready: impl Fn() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A child that is killed when this is dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Killed {
    pub fn signal(&self, signal: i32) {
        // SAFETY: `kill` takes two numbers; the child was not waited for yet, so its id is still
        // valid.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }
}

/// A mounted tmpfs. It is unmounted when this is dropped.
pub struct Tmpfs {
    dir: tempfile::TempDir,
}

impl Tmpfs {
    /// `None`, with a message, if this process may not mount.
    pub fn mount(options: &str) -> Option<Self> {
        let dir = scratch();
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir.path())
            .output()
            .unwrap();
        if !output.status.success() {
            eprintln!(
                "SKIPPED: cannot mount a tmpfs: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            return None;
        }
        Some(Self { dir })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn remount(&self, options: &str) {
        let status = Command::new("mount")
            .args(["-o", &format!("remount,{options}")])
            .arg(self.path())
            .status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Whether tests can become other users. Prints a message if not.
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("SKIPPED: only root can become another user");
    }
    root
}

/// Copies this binary in another process. If this process opened the copy for writing, a child that
/// another thread forks at that moment would hold it open too, and the copy could not be started
/// ("text file busy").
pub fn copy_binary(to: &Path) {
    assert!(
        Command::new("cp")
            .arg(std::env::current_exe().unwrap())
            .arg(to)
            .status()
            .unwrap()
            .success()
    );
}

/// A child with another user's rights. The binary is copied to a folder that this user can reach.
pub fn child_as(uid: u32, mode: &str, dir: &Path, scratch: &Path) -> Command {
    let exe = scratch.join("child");
    if !exe.exists() {
        copy_binary(&exe);
        std::fs::set_permissions(&exe, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut command = child_of(&exe, mode, dir);
    command.uid(uid).gid(uid).current_dir("/");
    command
}

/// All files below a directory.
pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(listed) = std::fs::read_dir(dir) else { return found };
    for item in listed {
        let path = item.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// The path of an entry's file.
pub fn entry_path(dir: &Path, key: &BuildKey) -> PathBuf {
    let source = key.source().digest().hex();
    dir.join("v1/e").join(&source[..2]).join(&source).join(key.digest().hex())
}

/// Asserts that there are no locks and no temporary files: only entries, records, quarantined files
/// and the journal.
pub fn assert_no_leftovers(dir: &Path) {
    let left: Vec<PathBuf> = files_below(dir)
        .into_iter()
        .filter(|path| path.components().any(|part| part.as_os_str() == "locks") || is_temp(path))
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

fn is_temp(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("tmp-"))
}
