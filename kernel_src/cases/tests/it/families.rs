//! Every row of the registry has cases, samples, shipped tuning, and arguments that match the
//! kernel; there is no other list of families.

use kjit_engine::Target;
use kjit_kernel_cases::matrix::{Sample, representative};
use kjit_kernel_cases::{self as cases, Case};
use kjit_kernels::arguments::{Declared, Kind};
use kjit_kernels::spec::FAMILIES;
use kjit_kernels::tuning::shipped::Table;
use kjit_kernels::{Kernel, Size};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// These targets together have every kernel.
const TARGETS: [&str; 3] = ["sm_90a", "gfx1100", "gfx942"];

fn samples() -> Vec<(Target, Sample)> {
    let of = |arch: &str| {
        let target = Target::parse(arch).unwrap();
        representative(&target)
            .unwrap()
            .into_iter()
            .map(move |s| (target.clone(), s))
            .collect::<Vec<_>>()
    };
    TARGETS.iter().flat_map(|arch| of(arch)).collect()
}

fn all_cases() -> Vec<Case> {
    let of = |arch: &&str| {
        let target = Target::parse(arch).unwrap();
        target
            .waves()
            .iter()
            .flat_map(|&wave| cases::all(&target, wave, 1).unwrap())
            .collect::<Vec<_>>()
    };
    TARGETS.iter().flat_map(of).collect()
}

#[test]
fn every_family_has_a_unique_name_and_a_sample() {
    let names: BTreeSet<&str> = FAMILIES.iter().copied().collect();
    assert_eq!(names.len(), FAMILIES.len());
    let sampled: BTreeSet<&str> = samples().iter().map(|(_, s)| s.spec.family()).collect();
    assert_eq!(sampled, names);
}

#[test]
fn shipped_tuning_applies_to_every_family() {
    let mut consulted = BTreeSet::new();
    let mut choosers = BTreeSet::new();
    for (target, sample) in samples() {
        let spec = sample.spec.with(None);
        let Some(usual) = spec.tuning_by(&Table::default(), &target) else { continue };
        choosers.insert(spec.family());
        let Some(other) = spec.space(&target).into_iter().find(|t| *t != usual) else { continue };
        let table = Table::of(&format!("{}\t{spec}\t{other}\ta test\n", target.id()));
        assert_eq!(spec.tuning_by(&table, &target), Some(other), "{spec} on {target}");
        consulted.insert(spec.family());
    }
    assert_eq!(consulted, choosers, "not every chooser was consulted");
    assert!(
        consulted.contains("attend")
            && consulted.contains("small_gemm")
            && consulted.contains("flash")
    );
}

#[test]
fn samples_are_compiled_with_their_shipped_tuning() {
    let target = Target::parse("sm_90").unwrap();
    let rows: Vec<_> = kjit_kernels::tuning::shipped::all().map(Result::unwrap).collect();
    let mut met = 0;
    for sample in representative(&target).unwrap() {
        let text = sample.spec.to_string();
        for row in rows.iter().filter(|r| r.arch == target.id() && r.spec == text) {
            assert_eq!(sample.spec.tuning(&target).unwrap().to_string(), row.tuning, "{text}");
            met += 1;
        }
    }
    assert!(met > 3, "{met} lines");
}

#[test]
fn launch_uses_compiled_block_size() {
    for (target, s) in samples() {
        let launch = s.spec.launch(&target, 48, Size { tokens: 3, past: 70 }).unwrap();
        assert_eq!(launch.geometry.block, [s.kernel.block, 1, 1], "{} on {target}", s.name);
        assert_eq!(launch.geometry.shared, s.kernel.shared, "{} on {target}", s.name);
        assert!(launch.geometry.grid.iter().all(|n| *n > 0), "{} on {target}", s.name);
        let declared = s.spec.arguments();
        let named = launch.numbers.iter().map(|n| (n.0, Kind::U32));
        for (name, kind) in named.chain(launch.memory.iter().map(|m| (m.name, Kind::Pointer))) {
            assert!(
                declared.contains(&Declared { name, kind }),
                "{}: the source has no {kind:?} '{name}'",
                s.spec
            );
        }
    }
}

/// The parameters of a kernel as its source declares them. Names may be missing.
fn parameters(kernel: &Kernel) -> Vec<(Kind, Option<String>)> {
    let text = kernel.source.main_text();
    let text: String =
        text.lines().map(|l| l.split("//").next().unwrap_or_default().to_owned() + " ").collect();
    // Only kernels with pages or with chosen positions have these parameters, and the first sample
    // of a family never is such a kernel.
    let text =
        text.replace("PAGED(, const u32* table)", "").replace("CHOSEN(, const u32* chosen)", "");
    let begin = format!("KERNEL {}(", kernel.entry);
    let rest = &text[text.find(&begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len()..];
    let one = |text: &str| {
        let words: Vec<&str> = text.split([' ', '*']).filter(|w| !w.is_empty()).collect();
        let kind = match (text.contains('*'), words.as_slice()) {
            (true, _) => Kind::Pointer,
            (false, ["u32", ..]) => Kind::U32,
            (false, ["u64", ..]) => Kind::U64,
            (false, ["float", ..]) => Kind::F32,
            other => panic!("{other:?}"),
        };
        let last = words.last().filter(|w| !["u32", "u64", "float", "u8", "RESTRICT"].contains(w));
        (kind, last.map(|w| (*w).to_owned()))
    };
    rest[..rest.find(')').unwrap()].split(',').map(one).collect()
}

#[test]
fn family_arguments_match_their_kernels() {
    let mut met = BTreeSet::new();
    for (_, s) in samples() {
        if !met.insert(s.kernel.entry) {
            continue;
        }
        let (declared, parameters) = (s.spec.arguments(), parameters(&s.kernel));
        assert_eq!(declared.len(), parameters.len(), "{}", s.kernel.entry);
        for (d, (kind, name)) in declared.iter().zip(parameters) {
            assert_eq!(d.kind, kind, "{} of {}", d.name, s.kernel.entry);
            assert!(
                name.as_deref().is_none_or(|n| n == d.name),
                "{name:?} has the name '{}' in {}",
                d.name,
                s.kernel.entry
            );
        }
    }
    assert!(met.len() >= FAMILIES.len());
}

#[test]
fn every_family_has_cases_with_declared_arguments() {
    let mut met = BTreeMap::new();
    for case in all_cases() {
        for (arg, declared) in case.args.iter().zip(case.declared) {
            assert_eq!(arg.kind(), declared.kind, "{}: {}", case.name, declared.name);
        }
        assert_eq!(case.args.len(), case.declared.len(), "{}", case.name);
        *met.entry(case.kernel.entry).or_insert(0) += 1;
    }
    for (_, s) in samples() {
        assert!(
            met.get(s.kernel.entry).is_some_and(|n| *n >= 2),
            "{} has no two cases",
            s.kernel.entry
        );
    }
}

/// The modules that choose kernels, and so name families: plans; the upload, which converts weights
/// to the device's layout; the ring, which does that for each streamed layer; the limits of a card,
/// which use the times of two kernels.
const CHOOSERS: [&str; 4] = [
    "model/plan/src",
    "model/gpu/src/open.rs",
    "model/gpu/src/streamed.rs",
    "model/gpu/src/measure/limits.rs",
];

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// Code without comments and tests.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    text.lines().map(|l| l.split("//").next().unwrap_or_default().to_owned() + "\n").collect()
}

#[test]
fn families_are_named_only_in_module_and_registry() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let root = root.as_path();
    let registry = std::fs::read_to_string(root.join("kernel_src/src/spec.rs")).unwrap();
    // `Matvec($crate::matvec::MatvecSpec);`
    let rows: Vec<(&str, &str)> = registry
        .lines()
        .filter_map(|l| l.trim().strip_suffix("Spec);")?.split_once("($crate::"))
        .filter_map(|(_, path)| path.split_once("::"))
        .collect();
    assert_eq!(rows.len(), FAMILIES.len());
    let mut files = vec![];
    for folder in ["kernel_src/src", "kernel_src/cases/src", "model/src", "tools/src"] {
        rust_files(&root.join(folder), &mut files);
    }
    let own = |path: &Path| {
        // The file of the family, or its cases in the folder with the same name.
        let of = |folder: &str| path.strip_prefix(root.join(folder)).ok();
        let path = of("kernel_src/src").or_else(|| of("kernel_src/cases/src"))?;
        let module = path.components().nth(1)?.as_os_str().to_str()?.trim_end_matches(".rs");
        rows.iter().any(|(m, _)| *m == module).then_some(())
    };
    let counted: Vec<(PathBuf, String)> = files
        .into_iter()
        .filter(|p| own(p).is_none() && !CHOOSERS.iter().any(|c| p.starts_with(root.join(c))))
        .map(|p| (p.clone(), code(&p)))
        .collect();
    assert!(counted.len() > 100, "only {} files", counted.len());
    for (module, name) in rows {
        let mut places = vec![];
        for (path, code) in &counted {
            for line in code.lines() {
                let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
                let names = |w: &str| {
                    let last = w.rsplit("::").next().unwrap_or_default();
                    let type_of = last
                        .strip_prefix(name)
                        .is_some_and(|end| ["Spec", "Args", "Tuning"].contains(&end));
                    let variant =
                        ["Spec::", "Tuning::"].iter().any(|e| w.strip_prefix(e) == Some(name));
                    let through =
                        w.contains(&format!("kjit_kernels::{module}")) && w.contains("::");
                    type_of || variant || through && w.split("::").nth(1) == Some(module)
                };
                // A string that a test of lengths or headings quotes is not a family.
                let quoted = path.starts_with(root.join("kernel_src"))
                    && line.contains(&format!("\"{module}\""));
                if quoted || words.into_iter().any(names) {
                    places.push(format!(
                        "{}: {}",
                        path.strip_prefix(root).unwrap().display(),
                        line.trim()
                    ));
                }
            }
        }
        assert_eq!(places.len(), 1, "{module}:\n{}", places.join("\n"));
        assert!(places[0].starts_with("kernel_src/src/spec.rs"), "{}", places[0]);
    }
}

#[test]
fn kernel_source_lines_end_at_column_100() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu");
    let mut lines = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        for (i, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
            assert!(line.chars().count() <= 100, "{}:{}: longer than 100", path.display(), i + 1);
            lines += 1;
        }
    }
    assert!(lines > 4000, "{lines} lines: are these the kernels?");
}
