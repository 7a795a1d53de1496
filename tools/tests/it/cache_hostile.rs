//! `kjit cache` with an unusable folder: missing, not a folder, owned by another user, read-only,
//! full, of another version. Each gives one clear line, exit 1 if nothing could be done, and leaves
//! no partial result.

use crate::support::{error_line, kjit, stdout};
use kjit_cache::{Artefact, BuildKey, Cache, Config, Key};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

const COMMANDS: &[&str] = &["stat", "list", "verify", "clear"];

fn filled(home: &Path, entries: usize) {
    let cache = Cache::open(Config::for_app("kjit").ignore_environment().dir(home));
    for number in 0..entries {
        let source = Key::builder("hostile test").field("number", number.to_string()).finish();
        let artefact =
            Artefact::new(vec![7; 8_000]).meta("arch", "gfx1100").meta("kernel", "matvec");
        cache.put(&BuildKey::new(&source, |key| key.field("maker", "test")), &artefact);
    }
}

fn cache(home: &Path, args: &[&str]) -> assert_cmd::Command {
    let mut command = kjit();
    command.arg("cache").args(args).arg("--cache-dir").arg(home).env_remove("KJIT_PACK_PATH");
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A folder with a cache of five entries and a pack of them.
fn with_pack() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (home, pack) = (dir.path().join("home"), dir.path().join("x.kjitpack"));
    filled(&home, 5);
    stdout(&mut cache(&home, &["export", "-o", text(&pack)]));
    (dir, home, pack)
}

/// All commands, and an import, fail with one line that contains the path and these words.
#[track_caller]
fn all_refuse(home: &Path, pack: &Path, words: &str) {
    let import = ["import", text(pack)];
    for args in COMMANDS.iter().map(std::slice::from_ref).chain([&import[..]]) {
        let line = error_line(&mut cache(home, args), 1);
        assert!(line.contains(text(home)) && line.contains(words), "{args:?}: {line}");
    }
}

/// A small tmpfs, unmounted at the end. `None`, with a SKIPPED line, if this process may not mount.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount(options: &str) -> Option<Tmpfs> {
        let dir = tempfile::tempdir().unwrap();
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir.path())
            .output()
            .unwrap();
        if !done.status.success() {
            eprintln!(
                "SKIPPED: cannot mount a tmpfs: {}",
                String::from_utf8_lossy(&done.stderr).trim()
            );
            return None;
        }
        Some(Tmpfs(dir))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn missing_cache_is_empty_and_not_created() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("none");
    assert!(stdout(&mut cache(&home, &["stat"])).contains("not created yet"));
    for args in [&["list"][..], &["verify"], &["clear"]] {
        let output = cache(&home, args).assert().success().get_output().clone();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            said,
            format!("note: the cache {} does not exist yet\n", home.display()),
            "{args:?}"
        );
        assert!(cache(&home, args).arg("-q").assert().success().get_output().stderr.is_empty());
    }
    assert_eq!(stdout(&mut cache(&home, &["list", "--json"])), "[]\n");
    assert!(!home.exists());
}

#[test]
fn invalid_foreign_or_world_writable_cache_is_refused() {
    let (dir, home, pack) = with_pack();
    let file = dir.path().join("file");
    std::fs::write(&file, "not a directory").unwrap();
    all_refuse(&file, &pack, "Not a directory");
    std::fs::set_permissions(&home, PermissionsExt::from_mode(0o777)).unwrap();
    all_refuse(&home, &pack, "others may write to it");
    std::fs::set_permissions(&home, PermissionsExt::from_mode(0o700)).unwrap();
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: only root can give a directory away");
        return;
    }
    chown(&home, Some(54_321), None).unwrap();
    all_refuse(&home, &pack, "it belongs to another user");
    chown(&home, Some(0), None).unwrap();
    assert_eq!(stdout(&mut cache(&home, &["list"])).lines().count(), 5, "something was changed");
}

#[test]
fn read_only_cache_refuses_writes_with_reason() {
    let (dir, _, pack) = with_pack();
    let Some(disk) = Tmpfs::mount("size=4m,mode=700") else { return };
    let home = disk.0.path().join("home");
    filled(&home, 3);
    let remount = |how: &str| {
        Command::new("mount").args(["-o", how]).arg(disk.0.path()).status().unwrap().success()
    };
    assert!(remount("remount,ro"));
    assert_eq!(stdout(&mut cache(&home, &["list"])).lines().count(), 3);
    assert!(stdout(&mut cache(&home, &["verify"])).starts_with("3 good"));
    let output = cache(&home, &["clear"]).assert().code(1).get_output().clone();
    let (out, err) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(out.starts_with("removed 0 of 3 entries"), "{out}");
    assert!(
        err.contains("Read-only file system")
            && err.contains("(and 2 more)")
            && err.lines().count() == 1,
        "{err}"
    );
    // Importing existing entries needs no writing; importing new entries does.
    let line = error_line(&mut cache(&home, &["import", text(&pack)]), 1);
    assert!(
        line.contains("0 of 5 entries were imported") && line.contains("Read-only file system"),
        "{line}"
    );
    let inside = disk.0.path().join("x.kjitpack");
    let line = error_line(&mut cache(&home, &["export", "-o", text(&inside)]), 1);
    assert!(
        line.contains("Read-only file system") && line.matches("os error").count() == 1,
        "{line}"
    );
    // A corrupt entry that cannot be moved is reported, and not as quarantined.
    assert!(remount("remount,rw"));
    let doc: serde_json::Value =
        serde_json::from_str(&stdout(&mut cache(&home, &["list", "--json"]))).unwrap();
    let entry = PathBuf::from(doc[0]["path"].as_str().unwrap());
    std::fs::write(&entry, "torn").unwrap();
    assert!(remount("remount,ro"));
    let output = cache(&home, &["verify"]).assert().code(1).get_output().clone();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.contains("1 bad, 1 of them in read-only folders"), "{out}");
    drop(dir);
}

#[test]
fn full_disk_stops_import_and_export_without_partial_files() {
    let (_dir, home, pack) = with_pack();
    let Some(disk) = Tmpfs::mount("size=40k,mode=700") else { return };
    let new = disk.0.path().join("home");
    let line = error_line(&mut cache(&new, &["import", text(&pack)]), 1);
    assert!(
        line.contains(" of 5 entries were imported, then the import failed")
            && line.contains("No space left"),
        "{line}"
    );
    let verified = stdout(&mut cache(&new, &["verify"]));
    let taken: u32 = verified.split(' ').next().unwrap().parse().unwrap();
    assert!(
        (1..5).contains(&taken) && line.contains(&format!("{taken} of 5")),
        "{verified} {line}"
    );
    std::fs::remove_dir_all(&new).unwrap();
    filled(&home, 20);
    let output = disk.0.path().join("y.kjitpack");
    let line = error_line(&mut cache(&home, &["export", "-o", text(&output)]), 1);
    assert!(line.contains("No space left") && line.contains(text(&output)), "{line}");
    assert_eq!(std::fs::read_dir(disk.0.path()).unwrap().count(), 0, "half a pack stayed");
}

#[test]
fn newer_cache_format_is_preserved_and_named() {
    let (dir, home, pack) = with_pack();
    // A cache of the next format in the same folder.
    let newer = home.join("v2/e");
    std::fs::create_dir_all(&newer).unwrap();
    std::fs::write(newer.join("entry"), "from the future").unwrap();
    let output = cache(&home, &["stat"]).assert().success().get_output().clone();
    assert!(String::from_utf8(output.stderr).unwrap().contains("also contains v2"));
    stdout(&mut cache(&home, &["clear"]));
    assert_eq!(std::fs::read_to_string(newer.join("entry")).unwrap(), "from the future");
    // A pack of the next format.
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[8] = 2;
    let next = dir.path().join("next.kjitpack");
    std::fs::write(&next, &bytes).unwrap();
    let line = error_line(&mut cache(&home, &["import", text(&next)]), 1);
    assert!(line.contains("it is of format 2, this program reads format 1"), "{line}");
    // A pack of the next format that is used in place gives a warning, and a run continues.
    let output = cache(&home, &["list"])
        .env("KJIT_PACK_PATH", &next)
        .assert()
        .success()
        .get_output()
        .clone();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("warning: the pack")
            && said.contains("format 2")
            && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn invalid_pack_is_refused_by_name() {
    let (dir, home, pack) = with_pack();
    let (short, letter, link) =
        (dir.path().join("short"), dir.path().join("letter"), dir.path().join("link"));
    std::fs::write(&short, "x").unwrap();
    std::fs::write(&letter, "Dear cache, ".repeat(20)).unwrap();
    std::os::unix::fs::symlink(&pack, &link).unwrap();
    for (path, why) in [
        (short, "it has 1 bytes"),
        (letter, "magic bytes are missing"),
        (dir.path().to_owned(), "it is a directory"),
        (dir.path().join("none"), "No such file"),
        (link, "symbolic link"),
    ] {
        let line = error_line(&mut cache(&home, &["import", text(&path)]), 1);
        assert!(line.contains(text(&path)) && line.contains(why), "{line}");
    }
}

#[test]
fn system_packs_are_found_in_package_directories() {
    let (dir, _, pack) = with_pack();
    // In a separate mount namespace, so that the machine is not affected.
    let script = "mount --make-rprivate \
        / && mount -t tmpfs -o mode=755 tmpfs /usr/share && mkdir -p /usr/share/kjit/packs && cp \
        \"$1\" /usr/share/kjit/packs/ && echo mounted && exec \"$0\" cache list --cache-dir \"$2\"";
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", script])
        .arg(assert_cmd::cargo::cargo_bin("kjit"))
        .arg(&pack)
        .arg(dir.path().join("new"));
    let output = command.env_remove("KJIT_PACK_PATH").env_remove("KJIT_CACHE_DIR").output();
    let said = output
        .map(|o| String::from_utf8_lossy(&[o.stdout, o.stderr].concat()).into_owned())
        .unwrap_or_default();
    if !said.starts_with("mounted") {
        eprintln!("SKIPPED: no mount namespace of our own: {}", said.trim());
        return;
    }
    assert_eq!(said.matches("/usr/share/kjit/packs/x.kjitpack").count(), 5, "{said}");
}
