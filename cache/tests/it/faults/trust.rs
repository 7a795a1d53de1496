//! Which directories the cache trusts, by owner and permissions.

use std::convert::Infallible;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use kjit_cache::{Artefact, Cache, Export, Origin, Warning};

use super::support::{
    DEADLINE, NOBODY_AT_ALL, artefact, child, child_as, child_of, copy_binary, entry_path,
    files_below, finish, is_root, key, open, payload, scratch,
};

fn make(cache: &Cache, name: &str) -> Origin {
    let Ok(found) = cache.get_or_make::<Infallible, _>(&key(name), DEADLINE, || Ok(artefact(name)));
    assert_eq!(found.entry.payload(), payload(name));
    found.origin
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn filled(scratch: &Path) -> PathBuf {
    let dir = scratch.join("cache");
    make(&open(&dir), "k");
    dir
}

/// Opens `dir`, which must be refused for `reason`. The cache works without it.
#[track_caller]
fn assert_refused(dir: &Path, reason: &str) {
    let cache = open(dir);
    assert!(cache.get(&key("k")).is_none());
    assert_eq!(make(&cache, "k"), Origin::Made);
    assert_eq!(make(&cache, "k"), Origin::Memory);
    match cache.warnings().as_slice() {
        [Warning::Refused { reason: said, .. }] if said.contains(reason) => {}
        other => panic!("expected '{reason}', got {other:?}"),
    }
}

#[test]
fn files_are_private_to_owner_with_any_umask() {
    let scratch = scratch();
    let dir = scratch.path().join("deep/cache");
    let mut command = child("make", &dir);
    // SAFETY: `umask` only sets a number and is safe between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::umask(0);
            Ok(())
        });
    }
    finish(&mut command);
    let files = files_below(&dir);
    assert!(!files.is_empty());
    for file in files {
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600, "{}", file.display());
        for above in file.ancestors().skip(1).take_while(|above| above.starts_with(&dir)) {
            assert_eq!(above.metadata().unwrap().mode() & 0o777, 0o700, "{}", above.display());
        }
    }
}

#[test]
fn world_writable_directory_is_refused() {
    let scratch = scratch();
    let dir = filled(scratch.path());
    for bits in [0o777, 0o1777, 0o702] {
        mode(&dir, bits);
        assert_refused(&dir, "others may write");
    }
    // A group with write permission here can remove the cache's own directory (`v1`), but not
    // change its content, which only its owner may write.
    for bits in [0o770, 0o700] {
        mode(&dir, bits);
        assert_eq!(make(&open(&dir), "k"), Origin::Home);
    }
    for bits in [0o770, 0o707] {
        mode(&dir.join("v1"), bits);
        assert_refused(&dir, "others may write");
    }
}

#[test]
fn directory_of_other_user_is_refused() {
    if !is_root() {
        return;
    }
    let scratch = scratch();
    let dir = filled(scratch.path());
    chown(&dir, Some(NOBODY_AT_ALL), None).unwrap();
    assert_refused(&dir, "another user");
    chown(&dir, Some(0), None).unwrap();
    chown(dir.join("v1"), Some(NOBODY_AT_ALL), None).unwrap();
    assert_refused(&dir, "another user");
    // The rule also holds for users other than root.
    let theirs = scratch.path().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(NOBODY_AT_ALL + 1), None).unwrap();
    let output = finish(&mut child_as(NOBODY_AT_ALL, "make", &theirs, scratch.path()));
    assert!(output.contains("WARNING Refused") && output.contains("AGAIN Memory"), "{output}");
}

#[test]
fn entry_owned_or_writable_by_others_is_never_returned() {
    let scratch = scratch();
    let dir = filled(scratch.path());
    let file = entry_path(&dir, &key("k"));
    let for_others = |bits: u32| mode(&file, bits);
    let hostile: [(&str, &dyn Fn()); 3] = [
        ("others may write", &|| for_others(0o666)),
        ("others may write", &|| for_others(0o620)),
        ("another user", &|| chown(&file, Some(NOBODY_AT_ALL), None).unwrap()),
    ];
    for (reason, change) in hostile {
        if reason == "another user" && !is_root() {
            continue;
        }
        change();
        let cache = open(&dir);
        assert!(cache.get(&key("k")).is_none());
        let said = cache.warnings();
        assert!(
            matches!(&said[..], [Warning::Corrupt { reason: said, .. }] if said.contains(reason)),
            "{said:?}"
        );
        assert_eq!(make(&cache, "k"), Origin::Made);
        assert_eq!(make(&open(&dir), "k"), Origin::Home);
    }
}

#[test]
fn symlinks_are_not_followed_at_any_depth() {
    let scratch = scratch();
    let elsewhere = filled(&scratch.path().join("elsewhere"));
    let link = scratch.path().join("cache");
    symlink(&elsewhere, &link).unwrap();
    assert_refused(&link, "symbolic link");
    std::fs::remove_file(&link).unwrap();
    // A link below the base folder is moved away, and the cache continues.
    let steps = entry_path(Path::new(""), &key("k"));
    for depth in 1..=steps.components().count() {
        let dir = scratch.path().join(format!("cache{depth}"));
        let step: PathBuf = steps.components().take(depth).collect();
        std::fs::create_dir_all(dir.join(&step).parent().unwrap()).unwrap();
        symlink(elsewhere.join(&step), dir.join(&step)).unwrap();
        for path in
            dir.join(&step).parent().unwrap().ancestors().take_while(|path| path.starts_with(&dir))
        {
            mode(path, 0o700);
        }
        let cache = open(&dir);
        assert!(cache.get(&key("k")).is_none(), "followed at {}", step.display());
        assert_eq!(make(&cache, "k"), Origin::Made);
        assert!(!cache.warnings().is_empty(), "silent at {}", step.display());
        if depth > 1 {
            assert_eq!(make(&cache, "k"), Origin::Home, "not healed at {}", step.display());
        }
    }
    assert_eq!(make(&open(&elsewhere), "k"), Origin::Home, "what a link led to was touched");
}

#[test]
fn symlink_swap_race_never_returns_foreign_entry() {
    if !is_root() {
        return;
    }
    let scratch = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let dir = filled(scratch.path());
    // The attacker's entry is valid and has the right key; only its owner is wrong.
    let evil = scratch.path().join("evil");
    open(&evil).put(&key("k"), &Artefact::new("evil"));
    for path in files_below(&evil) {
        chown(&path, Some(NOBODY_AT_ALL), None).unwrap();
    }
    let below = |root: &Path| entry_path(root, &key("k")).parent().unwrap().to_owned();
    let (real, aside) = (below(&dir), dir.join("v1/real"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            let mut swaps = 0;
            while !stop.load(Ordering::Relaxed) {
                // It remains if the real folder was created again while the link existed.
                let _ = std::fs::remove_dir_all(&aside);
                if std::fs::rename(&real, &aside).is_ok() {
                    let _ = symlink(below(&evil), &real);
                    std::thread::yield_now();
                    let _ = std::fs::remove_file(&real);
                    let _ = std::fs::rename(&aside, &real);
                    swaps += 1;
                }
            }
            swaps
        });
        let (cache, mut hits) = (open(&dir), 0);
        for _ in 0..6_000 {
            // Makes the entry again if it was quarantined because of the link.
            make(&cache, "k");
            if let Some(found) = cache.get(&key("k")) {
                assert_eq!(found.entry.payload(), payload("k"), "the attacker's entry was run");
                hits += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
        let swaps = attacker.join().unwrap();
        eprintln!(
            "FIGURE a directory swapped \
             for a link to a hostile one while {hits} look-ups are answered | {swaps} swaps | 0"
        );
        assert!(hits > 0 && swaps > 100, "{hits} hits, {swaps} swaps: no race occurred");
    });
}

#[test]
fn read_only_cache_is_readable_by_other_users() {
    if !is_root() {
        return;
    }
    let scratch = scratch();
    let dir = filled(scratch.path());
    assert!(Command::new("chmod").args(["-R", "a+rX"]).arg(&dir).status().unwrap().success());
    let output = finish(&mut child_as(NOBODY_AT_ALL, "make", &dir, scratch.path()));
    assert!(output.contains("ORIGIN Home") && !output.contains("WARNING"), "{output}");
    let output =
        finish(child_as(NOBODY_AT_ALL, "make", &dir, scratch.path()).env("FAULT_KEY", "new"));
    assert!(output.contains("AGAIN Memory") && output.contains("WARNING NotWritable"), "{output}");
    assert_eq!(output.matches("WARNING").count(), 1, "{output}");
}

#[test]
fn cache_without_home_and_passwd_entry_is_in_memory() {
    if !is_root() {
        return;
    }
    let scratch = scratch();
    mode(scratch.path(), 0o777);
    let unused = scratch.path().join("unused");
    let mut command = child_as(NOBODY_AT_ALL, "user", &unused, scratch.path());
    command.env_remove("HOME").env_remove("XDG_CACHE_HOME");
    let output = finish(&mut command);
    assert!(output.contains("HOME None") && output.contains("AGAIN Memory"), "{output}");
    assert!(output.contains("WARNING NoHome"), "{output}");
}

#[test]
fn missing_or_unwritable_home_gives_a_warning() {
    if !is_root() {
        return;
    }
    let scratch = scratch();
    let unwritable = scratch.path().join("unwritable");
    std::fs::create_dir(&unwritable).unwrap();
    let log = scratch.path().join("log");
    std::fs::create_dir(&log).unwrap();
    mode(&log, 0o777);
    for home in [unwritable, PathBuf::from("/nonexistent/home"), PathBuf::from("/dev/null")] {
        let mut command = child_as(NOBODY_AT_ALL, "user", &log.join("x"), scratch.path());
        command.env("HOME", &home).env_remove("XDG_CACHE_HOME");
        let output = finish(&mut command);
        assert!(output.contains("AGAIN Memory"), "{output}");
        assert_eq!(output.matches("WARNING").count(), 1, "{output}");
    }
    // The user could not write the folder of the binary either.
    assert_eq!(scratch.path().metadata().unwrap().uid(), 0);
}

#[test]
fn user_cache_follows_xdg_directories() {
    let scratch = scratch();
    let output = finish(
        child("user", &scratch.path().join("log"))
            .env("HOME", scratch.path())
            .env_remove("XDG_CACHE_HOME"),
    );
    assert!(output.contains("AGAIN Home"), "{output}");
    assert!(entry_path(&scratch.path().join(".cache/fault"), &key("k")).exists());
    let own = scratch.path().join("own");
    finish(
        child("user", &scratch.path().join("log"))
            .env("HOME", scratch.path())
            .env("FAULT_CACHE_DIR", &own),
    );
    assert!(entry_path(&own, &key("k")).exists());
}

#[test]
fn packs_from_environment_are_read_and_missing_ones_reported() {
    let scratch = scratch();
    let maker = filled(&scratch.path().join("maker"));
    let packs = scratch.path().join("packs");
    std::fs::create_dir(&packs).unwrap();
    let what =
        Export { meta: Default::default(), entries: &|_| true, records: &|_| false, secret: None };
    open(&maker).export(packs.join("x.faultpack"), &what).unwrap();
    let list = std::env::join_paths([scratch.path().join("typo"), packs]).unwrap();
    let own = scratch.path().join("own");
    let mut command = child("user", &scratch.path().join("log"));
    let output = finish(command.env("FAULT_CACHE_DIR", &own).env("FAULT_PACK_PATH", list));
    assert!(output.contains("ORIGIN ReadOnly") && output.contains("x.faultpack"), "{output}");
    assert!(output.contains("WARNING PackRefused") && output.contains("typo"), "{output}");
    assert_eq!(output.matches("WARNING").count(), 1, "{output}");
}

#[test]
fn setuid_program_disables_the_cache() {
    if !is_root() {
        return;
    }
    let scratch = scratch();
    let exe = scratch.path().join("setuid");
    copy_binary(&exe);
    mode(&exe, 0o4755);
    let (log, own) = (scratch.path().join("log"), scratch.path().join("own"));
    std::fs::create_dir(&log).unwrap();
    mode(&log, 0o777);
    let mut command = child_of(&exe, "user", &log.join("x"));
    command.uid(NOBODY_AT_ALL).gid(NOBODY_AT_ALL).env("FAULT_CACHE_DIR", &own).env("HOME", "/root");
    let output = finish(&mut command);
    assert!(output.contains("WARNING Privileged") && output.contains("HOME None"), "{output}");
    assert!(!own.exists());
}
