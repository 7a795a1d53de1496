//! The candidates of a compiler, in order of use.

use super::discover::CandidateList;
use super::discover::{Candidate, SearchedPath};
use super::interface::Compiler;
use std::path::Path;

/// The candidates of a compiler in order of use. A named file is always used. Otherwise it is the
/// newest whose major version does not exceed that of the driver. Among equal versions, the first
/// one found is first.
pub(crate) fn candidates(
    compiler: &dyn Compiler,
    explicit: Option<&Path>,
    driver: Option<(u32, u32)>,
) -> (Vec<Candidate>, Vec<SearchedPath>) {
    let mut places = compiler.places(explicit);
    let mut fit = usable(compiler, &places, driver);
    if fit.is_empty() && !places.misnamed {
        places.finish();
        fit = usable(compiler, &places, driver);
    }
    (fit, places.tried)
}

fn usable(
    compiler: &dyn Compiler,
    places: &CandidateList,
    driver: Option<(u32, u32)>,
) -> Vec<Candidate> {
    if places.misnamed {
        return Vec::new();
    }
    if let Some(named) = places.found.iter().find(|c| c.named) {
        return vec![named.clone()];
    }
    // A name without a version is last; its version is known only after opening.
    let major = |c: &Candidate| compiler.major_of(&c.file);
    let suits = |c: &&Candidate| major(c).is_none_or(|m| compiler.suits_driver(m, driver));
    let mut fit: Vec<Candidate> = places.found.iter().filter(suits).cloned().collect();
    // stable sort: equal versions stay in the order found
    fit.sort_by_key(|c| std::cmp::Reverse(major(c).unwrap_or(0)));
    fit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Vendor;
    use crate::source::Options;
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    /// A compiler that is searched in the folders `a` and `b` below a root.
    struct SubfolderSearch(PathBuf);

    impl Compiler for SubfolderSearch {
        fn kind(&self) -> &'static str {
            "test"
        }
        fn vendor(&self) -> Vendor {
            Vendor::Nvidia
        }
        fn places(&self, explicit: Option<&Path>) -> CandidateList {
            let mut places = CandidateList::new(&["libx.so.13", "libx.so.12", "libx.so"]);
            places.explicit("--compiler-path", explicit.map(Path::to_owned));
            places.folder("first", &self.0.join("a"));
            places.folder("second", &self.0.join("b"));
            places
        }
        fn major_of(&self, file: &Path) -> Option<u32> {
            file.to_str()?.split_once(".so.")?.1.parse().ok()
        }
        fn suits_driver(&self, major: u32, driver: Option<(u32, u32)>) -> bool {
            driver.is_none_or(|d| major <= d.0)
        }
        fn companions(&self, _: &Path, _: (u32, u32)) -> Vec<PathBuf> {
            Vec::new()
        }
        fn arguments(&self, _: &str, _: &Options) -> Vec<String> {
            Vec::new()
        }
        fn needs(&self, _: (u32, u32)) -> BTreeMap<String, String> {
            BTreeMap::new()
        }
        fn package(&self) -> &'static str {
            "nothing"
        }
        fn spills(&self, _: &str) -> BTreeMap<String, u32> {
            BTreeMap::new()
        }
    }

    fn root(files: &[&str]) -> (tempfile::TempDir, SubfolderSearch) {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"x").unwrap();
        }
        let below = SubfolderSearch(dir.path().canonicalize().unwrap());
        (dir, below)
    }

    fn names(found: &[Candidate], root: &SubfolderSearch) -> Vec<String> {
        found.iter().map(|c| c.file.strip_prefix(&root.0).unwrap().display().to_string()).collect()
    }

    #[test]
    fn newest_supported_compiler_is_first_in_found_order() {
        let (_dir, x) = root(&["a/libx.so.12", "b/libx.so.13", "b/libx.so.12"]);
        let with = |driver| names(&candidates(&x, None, driver).0, &x);
        assert_eq!(with(None), ["b/libx.so.13", "a/libx.so.12", "b/libx.so.12"]);
        assert_eq!(with(Some((13, 0))), ["b/libx.so.13", "a/libx.so.12", "b/libx.so.12"]);
        assert_eq!(with(Some((12, 9))), ["a/libx.so.12", "b/libx.so.12"]);
        assert!(with(Some((11, 0))).is_empty());
    }

    #[test]
    fn configured_file_wins_over_version() {
        let (_dir, x) = root(&["a/libx.so.13", "elsewhere/libx.so.12"]);
        let named = x.0.join("elsewhere/libx.so.12");
        let (found, _) = candidates(&x, Some(&named), Some((11, 0)));
        assert_eq!(names(&found, &x), ["elsewhere/libx.so.12"]);
    }

    #[test]
    fn all_searched_places_are_listed_and_links_deduplicated() {
        let (_dir, x) = root(&["a/libx.so.13"]);
        std::os::unix::fs::symlink("libx.so.13", x.0.join("a/libx.so")).unwrap();
        let (found, tried) = candidates(&x, None, None);
        assert_eq!(names(&found, &x), ["a/libx.so.13"]);
        let places: Vec<(&str, bool)> =
            tried.iter().map(|t| (t.via.as_str(), t.found.is_some())).collect();
        assert_eq!(places, [("first", true), ("first", true), ("second", false)]);
    }

    #[test]
    fn missing_configured_file_is_not_replaced() {
        let (_dir, x) = root(&["a/libx.so.13"]);
        let (found, tried) = candidates(&x, Some(Path::new("/nonexistent/libx.so")), None);
        assert!(found.is_empty());
        assert_eq!((tried[0].via.as_str(), tried[0].found.as_ref()), ("--compiler-path", None));
    }
}
