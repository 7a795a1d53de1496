//! Proof bundles: exported for a card that is not present, read back, and run on a simulated card.

use crate::common::{TEMPORARY, WORKER};
use kjit_engine::Target;
use kjit_model::gpu::bundle::{self, Bundle, BundleError, ExportOptions, Exported, LIMIT};
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use std::path::Path;

/// Exports a bundle of the cases whose names contain `filter`.
fn export(arch: &str, filter: &str, limit: u64, folder: &Path) -> Exported {
    let engine = engine(&cache(TEMPORARY).join("real"), WORKER, "clang");
    let wish = ExportOptions { seed: 20_261_121, filter: filter.to_owned(), limit };
    let made =
        bundle::export(&engine, &Target::parse(arch).unwrap(), &wish, folder, &|_, _| {}).unwrap();
    eprintln!("{arch} '{filter}': {made:?}");
    made
}

/// Paths of all files. A test damages each of them.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut all = vec![];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all.sort();
    all
}

fn setup(arch: &str) -> Setup {
    Setup::devices(arch).set("HIPSIM_OPTIMISE", "-Og")
}

#[test]
fn clang_bundle_is_correct_on_simulated_gpu() {
    setup("gfx1100").run(
        "simulated_bundle::clang_bundle_is_correct_on_simulated_gpu",
        TEMPORARY,
        || {
            let folder = tempfile::tempdir().unwrap();
            // One family with LDS and several buffers, at both wave widths.
            let made = export("gfx1100", "attend", 2 * LIMIT, folder.path());
            assert!(made.cases > 4 && made.left_out.is_empty(), "{made:?}");
            let on_disk: u64 =
                files(folder.path()).iter().map(|f| f.metadata().unwrap().len()).sum();
            assert_eq!(on_disk, made.bytes);
            assert!(on_disk < 2 * LIMIT, "{on_disk} bytes");
            let bundle = Bundle::open(folder.path()).unwrap();
            assert_eq!(bundle.cases(), made.cases);
            // The cache is empty, so code that was not compiled here came from the bundle.
            let empty = tempfile::tempdir().unwrap();
            let engine = engine(empty.path(), WORKER, "hiprtc");
            let device = engine.device("rocm:0").unwrap();
            let verdicts = bundle.run(&device, &|_, _| {}).unwrap();
            let failed: Vec<_> = verdicts.iter().filter(|v| v.failure.is_some()).collect();
            assert!(failed.is_empty(), "{failed:?} {}", Simulated::here().fault(0));
            assert_eq!(verdicts.len(), made.cases);
            assert!(
                verdicts.iter().any(|v| v.case.ends_with("at wave 64")),
                "both wave widths are in it"
            );
            assert_eq!(engine.counts().compiled, 0, "all that ran came out of the bundle");
        },
    );
}

#[test]
fn bundle_with_flipped_byte_is_refused() {
    setup("gfx1100").run(
        "simulated_bundle::bundle_with_flipped_byte_is_refused",
        TEMPORARY,
        || {
            let folder = tempfile::tempdir().unwrap();
            export("gfx1100", "argmax", LIMIT, folder.path());
            Bundle::open(folder.path()).unwrap();
            let all = files(folder.path());
            assert!(all.len() >= 5, "{all:?}");
            for file in all {
                let good = std::fs::read(&file).unwrap();
                for at in [0, good.len() / 2, good.len() - 1] {
                    let mut bad = good.clone();
                    bad[at] ^= 1;
                    std::fs::write(&file, &bad).unwrap();
                    let refused = Bundle::open(folder.path());
                    assert!(
                        refused.is_err(),
                        "byte {at} of {} flipped, and nobody noticed",
                        file.display()
                    );
                }
                std::fs::write(&file, &good).unwrap();
            }
            Bundle::open(folder.path()).unwrap();
        },
    );
}

#[test]
fn wrong_result_gives_a_failed_verdict() {
    setup("gfx1100").run(
        "simulated_bundle::wrong_result_gives_a_failed_verdict",
        TEMPORARY,
        || {
            let folder = tempfile::tempdir().unwrap();
            let made = export("gfx1100", "argmax", LIMIT, folder.path());
            // Another expected output with matching checksums, as if the device had computed wrong
            // values.
            let manifest = folder.path().join("manifest.json");
            let text = std::fs::read_to_string(&manifest).unwrap();
            let spoiled = text
                .replace("\"must_be\": \"exactly\"", "\"must_be\": \"unchanged\"")
                .replace("\"content\"", "\"note\"");
            assert_ne!(text, spoiled);
            std::fs::write(&manifest, &spoiled).unwrap();
            let sums = folder.path().join("SHA256SUMS");
            let digest = |text: &str| kjit_engine::Digest::of(text.as_bytes()).hex();
            let listed = std::fs::read_to_string(&sums).unwrap();
            std::fs::write(&sums, listed.replace(&digest(&text), &digest(&spoiled))).unwrap();
            let bundle = Bundle::open(folder.path()).unwrap();
            let device =
                engine(&cache(TEMPORARY).join("real"), WORKER, "hiprtc").device("rocm:0").unwrap();
            let verdicts = bundle.run(&device, &|_, _| {}).unwrap();
            assert_eq!(verdicts.len(), made.cases);
            assert!(verdicts.iter().all(|v| v.failure.is_some()), "{verdicts:?}");
        },
    );
}

#[test]
fn bundle_for_other_gpu_is_not_run() {
    setup("gfx1030").run("simulated_bundle::bundle_for_other_gpu_is_not_run", TEMPORARY, || {
        let folder = tempfile::tempdir().unwrap();
        export("gfx1100", "argmax", LIMIT, folder.path());
        let device =
            engine(&cache(TEMPORARY).join("real"), WORKER, "hiprtc").device("rocm:0").unwrap();
        let refused = Bundle::open(folder.path()).unwrap().run(&device, &|_, _| {});
        assert!(matches!(refused, Err(BundleError::Arch { .. })), "{refused:?}");
    });
}

#[test]
fn cases_above_bundle_size_limit_are_omitted_and_named() {
    setup("gfx1100").run(
        "simulated_bundle::cases_above_bundle_size_limit_are_omitted_and_named",
        TEMPORARY,
        || {
            let (whole, small) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let all = export("gfx1100", "argmax", LIMIT, whole.path());
            // One byte less than all cases need. The README and the two programs are most of such a
            // small bundle.
            let limit = all.bytes - 1;
            let part = export("gfx1100", "argmax", limit, small.path());
            assert!(part.cases > 0 && part.cases < all.cases && part.bytes <= limit, "{part:?}");
            assert_eq!(part.cases + part.left_out.len(), all.cases);
            assert_eq!(Bundle::open(small.path()).unwrap().cases(), part.cases);
            let manifest = std::fs::read_to_string(small.path().join("manifest.json")).unwrap();
            assert!(part.left_out.iter().all(|name| manifest.contains(name)));
            let again = bundle::export(
                &engine(&cache(TEMPORARY).join("real"), WORKER, "clang"),
                &Target::parse("gfx1100").unwrap(),
                &ExportOptions { seed: 1, filter: "argmax".to_owned(), limit: LIMIT },
                small.path(),
                &|_, _| {},
            );
            assert!(matches!(again, Err(BundleError::NotEmpty(_))), "{again:?}");
        },
    );
}
