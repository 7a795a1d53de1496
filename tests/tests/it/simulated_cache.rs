//! Cache keys: changes that must give another code object, and changes that must not. The compiler
//! of the simulated device is a library that these tests copy, move and replace.

use crate::common::{TEMPORARY, WORKER};
use kjit_engine::{
    Config, Constants, Engine, Geometry, Isolation, Job, Options, Source, Target, args,
};
use kjit_tests::launch::TestLaunch;
use kjit_tests::simulator::{self, Setup};
use std::path::{Path, PathBuf};

/// An engine with its cache in `dir`. It compiles with the given file.
fn engine(dir: &Path, compiler: &Path) -> Engine {
    Engine::new(
        Config::new()
            .cache(kjit_cache::Config::for_app("kjit").ignore_environment().dir(dir))
            .isolation(Isolation::Worker(PathBuf::from(WORKER)))
            .compiler_kind("hiprtc")
            .compiler_path(compiler)
            .jobs(2),
    )
}

/// An engine with an additional read-only cache layer, such as a pack.
fn engine_beside(layer: &Path, dir: &Path, compiler: &Path) -> Engine {
    let cache = kjit_cache::Config::for_app("kjit").ignore_environment().dir(dir).read_only(layer);
    let isolation = Isolation::Worker(PathBuf::from(WORKER));
    Engine::new(
        Config::new()
            .cache(cache)
            .isolation(isolation)
            .compiler_kind("hiprtc")
            .compiler_path(compiler),
    )
}

/// A kernel that stores the header's value plus a constant.
fn job(header: &str, constant: i32) -> Job {
    let text = "#include \"kjit.h\"\n#include \"value.h\"\nKERNEL answer(u32* out) { if (thread_id() == 0) *out = VALUE + MORE; }\n";
    let source = Source::new("answer", "answer.hip", text)
        .file("kjit.h", include_str!("../../../kernel_src/gpu/kjit.h"))
        .file("value.h", header.to_owned())
        .entry("answer");
    let constants = Constants::new().set("MORE", constant).set("KJ_BLOCK", 64);
    Job::new(source, constants, Options::wave(32), Target::parse("gfx1100").unwrap())
}

/// Copies the simulated compiler to another path.
fn copy_of_the_compiler(to: &Path) {
    let from = std::env::var_os("KJIT_HIPRTC_LIBRARY").unwrap();
    std::fs::copy(from, to).unwrap();
}

fn compiled(engine: &Engine) -> u64 {
    engine.counts().compiled
}

#[test]
fn compiler_replaced_at_run_time_gets_new_keys() {
    let test = "simulated_cache::compiler_replaced_at_run_time_gets_new_keys";
    Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").run(test, TEMPORARY, || {
        let dir = tempfile::tempdir().unwrap();
        let (cache, compiler) = (dir.path().join("cache"), dir.path().join("libhiprtc.so.6"));
        copy_of_the_compiler(&compiler);
        let running = engine(&cache, &compiler);
        let old = running.compile(&job("#define VALUE 1", 1)).unwrap();

        // An update by a package manager: another file of the same version with the same name.
        let mut bytes = std::fs::read(&compiler).unwrap();
        bytes.extend_from_slice(b"another build");
        std::fs::write(dir.path().join("new"), bytes).unwrap();
        std::fs::rename(dir.path().join("new"), &compiler).unwrap();

        // The running process detects it at its next compile without a restart.
        let next = running.compile(&job("#define VALUE 1", 2)).unwrap();
        assert_eq!((compiled(&running), running.counts().failed), (2, 0));
        // The next process uses the new compiler's code for later compiles and none of the old
        // compiler's.
        let fresh = engine(&cache, &compiler);
        assert_eq!(fresh.compile(&job("#define VALUE 1", 2)).unwrap().digest(), next.digest());
        assert_eq!(compiled(&fresh), 0, "it was kept under the old compiler's key");
        let again = fresh.compile(&job("#define VALUE 1", 1)).unwrap();
        assert_eq!(compiled(&fresh), 1, "the old compiler's code was taken for the new one's");
        let builds = fresh.cache().list();
        assert_eq!(builds.len(), 3);
        assert_eq!(
            builds
                .iter()
                .map(|e| e.key.source().digest())
                .collect::<std::collections::BTreeSet<_>>()
                .len(),
            2
        );
        assert_ne!(again.digest(), old.digest());
    });
}

#[test]
fn changed_header_or_constant_is_recompiled() {
    let test = "simulated_cache::changed_header_or_constant_is_recompiled";
    Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").run(test, TEMPORARY, || {
        let dir = tempfile::tempdir().unwrap();
        let compiler = PathBuf::from(std::env::var_os("KJIT_HIPRTC_LIBRARY").unwrap());
        let engine = engine(dir.path(), &compiler);
        let device = engine.device("rocm:0").unwrap();
        let stream = device.stream().unwrap();
        let answer = |header: &str, more: i32| {
            let module = engine.load(&device, &job(header, more)).unwrap();
            let out = stream.upload(&[0u32]).unwrap();
            stream
                .put(&module.kernel("answer").unwrap(), &Geometry::new(1, 64), &args![&out])
                .unwrap();
            (stream.read(&out).unwrap()[0], compiled(&engine))
        };
        assert_eq!(answer("#define VALUE 10", 1), (11, 1));
        assert_eq!(answer("#define VALUE 20", 1), (21, 2));
        assert_eq!(answer("#define VALUE 20", 2), (22, 3));
        // The old header again: nothing is compiled, although this is not the newest entry of that
        // name.
        assert_eq!(answer("#define VALUE 10", 1), (11, 3));
    });
}

#[test]
fn equal_compiler_and_cache_under_other_paths_hit() {
    let test = "simulated_cache::equal_compiler_and_cache_under_other_paths_hit";
    Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").run(test, TEMPORARY, || {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in ["here", "in a container"] {
            std::fs::create_dir(at(folder)).unwrap();
            copy_of_the_compiler(&at(folder).join("libhiprtc.so.6"));
        }
        let here = engine(&at("here/cache"), &at("here/libhiprtc.so.6"));
        here.compile(&job("#define VALUE 1", 1)).unwrap();
        let moved = std::process::Command::new("cp")
            .arg("-r")
            .args([at("here/cache"), at("in a container/cache")])
            .status();
        assert!(moved.unwrap().success());
        let there = engine(&at("in a container/cache"), &at("in a container/libhiprtc.so.6"));
        there.compile(&job("#define VALUE 1", 1)).unwrap();
        assert_eq!((compiled(&here), compiled(&there)), (1, 0));
    });
}

#[test]
fn compiler_dependent_entries_are_not_taken_from_other_compilers() {
    let test = "simulated_cache::compiler_dependent_entries_are_not_taken_from_other_compilers";
    Setup::devices("gfx1100").run(test, TEMPORARY, || {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (one, asked) = (path("libhiprtc.so.6"), job("#define VALUE 1", 1));
        copy_of_the_compiler(&one);
        let made = simulator::engine(&path("pack"), WORKER, "clang").compile(&asked).unwrap();

        let here = engine_beside(&path("pack"), &path("home"), &one);
        assert_eq!(here.compile(&asked).unwrap().digest(), made.digest());
        assert_eq!(compiled(&here), 0);
        let own = here.compile_own(&asked).unwrap();
        assert_ne!(own.digest(), made.digest());
        assert_eq!(compiled(&here), 1);
        // It is compiled once and stored like any other code object.
        assert_eq!(here.compile_own(&asked).unwrap().digest(), own.digest());
        let again = engine_beside(&path("pack"), &path("home"), &one);
        assert_eq!(again.compile_own(&asked).unwrap().digest(), own.digest());
        assert_eq!((compiled(&here), compiled(&again)), (1, 0));
        // Code in a pack is used like code in the cache of the machine.
        let packed = engine_beside(&path("home"), &path("third"), &one);
        assert_eq!(
            (packed.compile_own(&asked).unwrap().digest(), compiled(&packed)),
            (own.digest(), 0)
        );
        // Without a compiler the cached code is used.
        let none = engine_beside(&path("pack"), &path("fourth"), &path("none"));
        assert_eq!(none.compile_own(&asked).unwrap().digest(), made.digest());
    });
}
