//! The documentation agrees with the code: quoted errors, variables, links, and generated parts.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Files below a folder with one of these extensions, without built or fetched files.
fn files(folder: &Path, endings: &[&str], into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        if entry.is_dir() {
            if name != "target" && (!name.starts_with('.') || name == ".github") {
                files(&entry, endings, into);
            }
        } else if endings.iter().any(|e| name.ends_with(e)) {
            into.push(entry);
        }
    }
}

fn texts(folders: &[&str], endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut all = vec![];
    folders.iter().for_each(|f| files(&root().join(f), endings, &mut all));
    all.into_iter()
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap_or_default()))
        .collect()
}

const SOURCES: [&str; 20] = [
    "cache/src",
    "engine/src",
    "engine/sys",
    "hub/src",
    "kernel_src/cases/src",
    "kernel_src/formats/src",
    "kernel_src/src",
    "model/chat/src",
    "model/cpu/src",
    "model/exec/src",
    "model/gguf/src",
    "model/gpu/src",
    "model/graph/src",
    "model/plan/src",
    "model/ranks/src",
    "model/src",
    "model/tokenizer/src",
    "model/vision/src",
    "server/src",
    "tools/src",
];

#[test]
fn errors_quoted_in_troubleshooting_exist_in_code() {
    // String literals as written in the source. A literal that continues in the next line is one
    // string.
    let joined = |text: &str| {
        let mut out = String::new();
        for (i, part) in text.split("\\\n").enumerate() {
            out.push_str(if i == 0 { part } else { part.trim_start() });
        }
        out.replace("\\\"", "\"")
    };
    let code: String = texts(&SOURCES, &[".rs"]).iter().map(|(_, text)| joined(text)).collect();
    let read = |page: &str| fs::read_to_string(root().join(page)).unwrap();
    let pages = read("docs/troubleshooting.md") + &read("docs/amd-guide.md");
    let quoted: Vec<&str> =
        pages.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(quoted.len() > 30, "{} errors", quoted.len());
    for error in quoted {
        let parts: Vec<&str> = error.split('…').map(str::trim).filter(|p| p.len() > 2).collect();
        assert!(!parts.is_empty(), "{error}: nothing is left of it");
        for part in parts {
            assert!(code.contains(part), "'{part}' of '{error}' is nowhere in the code");
        }
    }
}

/// Every flag of the server is in docs/serve.md.
#[test]
fn every_serve_flag_is_in_its_page() {
    let help =
        Command::new(env!("CARGO_BIN_EXE_kjit")).args(["serve", "--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    let option = |line: &str| {
        let line = line.trim_start();
        line.starts_with('-')
            .then(|| line.split([' ', ',', '.', '=']).find(|w| w.starts_with("--")))?
            .map(str::to_owned)
    };
    let flags: BTreeSet<String> = help.lines().filter_map(option).collect();
    assert!(
        flags.len() > 30 && flags.contains("--lookup") && flags.contains("--device"),
        "{flags:?}"
    );
    let page = fs::read_to_string(root().join("docs/serve.md")).unwrap();
    let words: BTreeSet<&str> =
        page.split(|c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c))).collect();
    let missing: Vec<&String> =
        flags.iter().filter(|flag| !words.contains(flag.as_str())).collect();
    assert!(missing.is_empty(), "not in docs/serve.md: {missing:?}");
}

/// The guide for AMD cards contains the messages of `kjit doctor`.
#[test]
fn install_advice_of_guide_equals_doctor() {
    use kjit_engine::amd_system::{ELSEWHERE, IN_A_CONTAINER, PACKAGES};
    let page = fs::read_to_string(root().join("docs/amd-guide.md")).unwrap();
    let plain: String = page.chars().filter(|c| *c != '`').collect();
    for how in PACKAGES.iter().map(|(_, how)| how).chain([&IN_A_CONTAINER, &ELSEWHERE]) {
        let (system, what) = how.split_once(": ").unwrap_or(("elsewhere", how));
        assert!(plain.contains(what), "{system}: the guide does not say '{what}'");
    }
    // The README has all cards of the guide's table, by architecture or as a range of one family.
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for word in ["compiled", "simulated", "emulated", "run on a card"] {
        assert!(readme.contains(word) && page.contains(word), "{word}");
    }
}

/// Names of variables in a text.
fn variables(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let names = text.match_indices("KJIT_").filter(|(at, _)| !text[..*at].ends_with(word));
    let names =
        names.map(|(at, _)| text[at..].chars().take_while(|c| word(*c)).collect::<String>());
    names.filter(|name| name.len() > 5 && !name.ends_with('_')).collect()
}

#[test]
fn variables_in_code_and_docs_are_the_same() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let users = read("docs/run.md");
    // Variables of the cache, which begin with the program's name.
    let mut in_code: BTreeSet<String> =
        ["KJIT_CACHE_DIR", "KJIT_PACK_PATH"].map(str::to_owned).into();
    for (path, text) in texts(&SOURCES, &[".rs"]) {
        // Paths are relative to the repository, whose folder may have any name.
        let below = path.strip_prefix(root()).unwrap();
        if !below.components().any(|c| c.as_os_str() == "tests" || c.as_os_str() == "check")
            && !below.ends_with("testing.rs")
        {
            in_code.extend(
                variables(&text).into_iter().filter(|name| !name.starts_with("KJIT_TEST_")),
            );
        }
    }
    assert!(in_code.len() >= 11, "{in_code:?}");
    assert_eq!(variables(&users), in_code, "docs/run.md (left), the code (right)");
    let developers = users + &read("tests/src/lib.rs") + &read("tests/hipsim/sim.h");
    let named = variables(&developers);
    let places =
        ["scripts", "tests", "engine", "cache", "model", "kernel_src", "tools", "benches", "hub"];
    let mut seen = BTreeSet::new();
    for (_, text) in texts(
        &places,
        &[
            ".rs",
            ".sh",
            ".py",
            ".cpp",
            ".h",
            "gpu-suite",
            "quickstart",
            "test",
            "fetch-test-models",
        ],
    ) {
        seen.extend(variables(&text));
    }
    // Users cannot remember many options, so the table must stay short.
    assert!(named.len() <= 40, "{} variables: {named:?}", named.len());
    for name in &seen {
        // A prefix matches a family of names: `KJIT_FAULT_…`.
        let family = name
            .match_indices('_')
            .any(|(at, _)| developers.contains(&format!("`{}…`", &name[..=at])) && at > 4);
        assert!(named.contains(name) || family, "{name} is documented nowhere");
    }
    for name in &named {
        assert!(
            seen.contains(name) || in_code.contains(name),
            "{name} is documented, and nobody reads it"
        );
    }
}

/// The anchor of a heading.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_between_documents_are_valid() {
    let mut pages = vec![];
    files(&root(), &[".md", ".yml"], &mut pages);
    let mut links = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for (at, _) in text.match_indices("](") {
            let Some(link) = text[at + 2..].split(')').next() else { continue };
            if link.contains("://") || link.contains(' ') || link.is_empty() {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let to = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(to.exists(), "{}: {link}", page.display());
            if !heading.is_empty() {
                let there = fs::read_to_string(&to).unwrap();
                let found =
                    there.lines().filter(|l| l.starts_with('#')).any(|l| slug(l) == heading);
                assert!(found, "{}: no heading for {link}", page.display());
            }
            links += 1;
        }
    }
    assert!(links > 60, "{links}");
}

/// Documents and headings exist that comments and errors name.
#[test]
fn documents_named_in_code_exist_with_heading() {
    let folders =
        [&SOURCES[..], &["benches", "fuzz/fuzz_targets", "scripts", "tests", "kernel_src/gpu"]]
            .concat();
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_./#".contains(c);
    let mut seen = 0;
    for (path, text) in texts(&folders, &[".rs", ".py", ".h", ".hip", ".toml", ".cpp"]) {
        for word in text
            .replace("ggml's `docs/", "`")
            .split(|c| !is_part(c))
            .map(|word| word.trim_end_matches('.'))
        {
            let (file, heading) = word.split_once('#').unwrap_or((word, ""));
            let capital = file
                .strip_suffix(".md")
                .is_some_and(|name| name.chars().all(|c| c.is_ascii_uppercase()));
            if !(file.ends_with(".md")
                && (file.starts_with("docs/") || (capital && file.len() > 3)))
            {
                continue;
            }
            let places = [root().join(file), path.parent().unwrap().join(file)];
            let page = places.iter().find_map(|place| fs::read_to_string(place).ok());
            let page = page
                .unwrap_or_else(|| panic!("{} names {file}, which is not there", path.display()));
            let found = heading.is_empty()
                || page.lines().any(|l| l.starts_with('#') && slug(l) == heading);
            assert!(found, "{}: no heading for {word}", path.display());
            seen += 1;
        }
        // This is an old document that was never in the repository.
        assert!(!text.contains("(DESIGN "), "{} names DESIGN.md", path.display());
    }
    assert!(seen > 8, "{seen}");
}

#[test]
fn generated_files_are_up_to_date() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no python3 here");
        return;
    }
    for (script, argument) in [("scripts/results", "check"), ("scripts/third-party", "--check")] {
        let output = Command::new("python3")
            .arg(root().join(script))
            .arg(argument)
            .current_dir(root())
            .output()
            .unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let printed = Command::new(env!("CARGO_BIN_EXE_kjit")).arg("notices").output().unwrap();
    assert_eq!(printed.stdout, fs::read(root().join("THIRD-PARTY")).unwrap());
}

#[test]
fn public_crates_have_description_and_compiled_example() {
    for folder in [
        "cache",
        "engine",
        "kernel_src",
        "kernel_src/cases",
        "kernel_src/formats",
        "hub",
        "model",
        "model/chat",
        "model/gguf",
        "model/tokenizer",
        "engine/sys/hip-sys",
        "engine/sys/hiprtc-sys",
        "engine/sys/nccl-sys",
        "engine/sys/rocblas-sys",
    ] {
        let read = |file: &str| {
            fs::read_to_string(root().join(folder).join(file))
                .unwrap_or_else(|e| panic!("{folder}/{file}: {e}"))
        };
        assert!(read("Cargo.toml").contains("\ndescription = \""), "{folder}");
        assert!(read("README.md").contains("```rust"), "{folder}");
        assert!(
            read("src/lib.rs").contains("include_str!(\"../README.md\")"),
            "{folder}: its README's example is compiled by nothing"
        );
    }
}

/// The line length of comments, kernels and prose. rustfmt checks Rust code. Tables, links,
/// literals and quoted output may be longer.
#[test]
fn lines_end_at_column_100() {
    let root = root();
    let listed = Command::new("git").args(["ls-files"]).current_dir(&root).output();
    let Some(listed) = listed.ok().filter(|out| out.status.success()) else {
        return eprintln!("SKIPPED: this is not a checkout of git");
    };
    let mut long = vec![];
    for file in String::from_utf8(listed.stdout).unwrap().lines() {
        let (rust, prose) = (file.ends_with(".rs"), file.ends_with(".md"));
        let kernel = [".h", ".hip", ".cu"].iter().any(|end| file.ends_with(end));
        if !rust && !kernel && !prose {
            continue;
        }
        let mut fenced = false;
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            fenced ^= line.trim_start().trim_start_matches(['/', '!', ' ']).starts_with("```");
            let line = line.trim_end();
            let (comment, table) = (line.trim_start().starts_with("//"), line.contains("| "));
            let exempt = match (rust, kernel) {
                (true, _) => {
                    !comment || fenced || table || line.contains("http") || line.contains("`[")
                }
                (_, true) => !comment && line.contains('"') || table,
                _ => fenced || table || line.starts_with("    ") || line.contains("]("),
            };
            if line.chars().count() > 100 && !exempt {
                long.push(format!("{file}:{}", number + 1));
            }
        }
    }
    assert!(long.is_empty(), "{} lines: {}", long.len(), long.join(", "));
}
