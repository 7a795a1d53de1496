//! Searches for compilers. Each searched path is recorded, with its result, for `kjit devices
//! -v`.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A path that was searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchedPath {
    /// The reason for the search: `KJIT_NVRTC_LIBRARY`, `loader path`, `Python package`.
    pub via: String,
    /// File or folder that was searched.
    pub place: PathBuf,
    /// The compiler that was found there.
    pub found: Option<PathBuf>,
}

/// A file that may be opened as a compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Absolute path without symbolic links. The file is opened by this path, so that it cannot be
    /// redirected to another file later.
    pub file: PathBuf,
    pub via: String,
    /// A flag or variable names this file. It is used regardless of its version.
    pub named: bool,
}

type DeferredSearch = fn(&mut CandidateList);

/// Collects candidates in order.
pub(crate) struct CandidateList {
    names: &'static [&'static str],
    pub tried: Vec<SearchedPath>,
    pub found: Vec<Candidate>,
    seen: BTreeSet<PathBuf>,
    /// A flag or variable names a file that does not exist. No other file is used instead.
    pub(super) misnamed: bool,
    later: Option<DeferredSearch>,
}

impl CandidateList {
    pub fn new(names: &'static [&'static str]) -> CandidateList {
        CandidateList {
            names,
            tried: Vec::new(),
            found: Vec::new(),
            seen: BTreeSet::new(),
            misnamed: false,
            later: None,
        }
    }

    /// Adds a file named by a flag.
    pub fn explicit(&mut self, via: &str, file: Option<PathBuf>) {
        if let Some(file) = file {
            self.file(via, &file, true);
        }
    }

    /// Adds a file named by a variable.
    pub fn variable(&mut self, name: &str) {
        if let Some(file) = std::env::var_os(name).filter(|v| !v.is_empty()) {
            self.file(name, Path::new(&file), true);
        }
    }

    /// Adds folders below the one that a variable names.
    pub fn below_variable(&mut self, name: &str, folders: &[&str]) {
        if let Some(root) = std::env::var_os(name).filter(|v| !v.is_empty()) {
            for folder in folders {
                self.folder(name, &Path::new(&root).join(folder));
            }
        }
    }

    /// Adds the loader's search path: `LD_LIBRARY_PATH`, the folders of its configuration, its
    /// defaults. Files are not opened: a compiler must not be loaded into this process.
    pub fn loader_path(&mut self) {
        for folder in folders_of("LD_LIBRARY_PATH") {
            self.folder("LD_LIBRARY_PATH", &folder);
        }
        for folder in loader_folders() {
            self.folder("loader path", folder);
        }
    }

    /// Adds a folder that may contain one of the names.
    pub fn folder(&mut self, via: &str, folder: &Path) {
        let mut any = false;
        for name in self.names {
            let file = folder.join(name);
            if file.is_file() {
                any = true;
                self.file(via, &file, false);
            }
        }
        if !any {
            self.tried.push(SearchedPath {
                via: via.to_owned(),
                place: folder.to_owned(),
                found: None,
            });
        }
    }

    /// Sets a search that is slow. It runs only if the others had no result.
    pub fn later(&mut self, f: DeferredSearch) {
        self.later = Some(f);
    }

    /// Runs the slow search.
    pub fn finish(&mut self) {
        if let Some(f) = self.later.take() {
            f(self);
        }
    }

    fn file(&mut self, via: &str, place: &Path, named: bool) {
        let found = place.canonicalize().ok().filter(|p| p.is_file());
        self.tried.push(SearchedPath {
            via: via.to_owned(),
            place: place.to_owned(),
            found: found.clone(),
        });
        self.misnamed |= named && found.is_none();
        if let Some(file) = found
            && self.seen.insert(file.clone())
        {
            self.found.push(Candidate { file, via: via.to_owned(), named });
        }
    }
}

/// The folders of `/etc/ld.so.conf` and the files that it includes, then the defaults.
pub(crate) fn loader_folders() -> &'static [PathBuf] {
    static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FOLDERS.get_or_init(|| {
        let mut folders = Vec::new();
        read_loader_configuration(Path::new("/etc/ld.so.conf"), &mut folders, 0);
        let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
        for root in ["/lib", "/usr/lib"] {
            folders.push(Path::new(root).join(&multiarch));
        }
        folders.extend(["/usr/lib64", "/lib64", "/usr/lib", "/lib"].map(PathBuf::from));
        let mut seen = BTreeSet::new();
        folders.retain(|f| seen.insert(f.clone()));
        folders
    })
}

fn read_loader_configuration(file: &Path, folders: &mut Vec<PathBuf>, depth: u32) {
    let Ok(text) = std::fs::read_to_string(file) else { return };
    for line in text
        .lines()
        .map(|l| l.split('#').next().unwrap_or_default().trim())
        .filter(|l| !l.is_empty())
    {
        match line.strip_prefix("include") {
            // Supports only the usual form: a folder and `*.conf`.
            Some(pattern) if depth < 4 => {
                let pattern = Path::new(pattern.trim());
                let Some(folder) = pattern.parent() else { continue };
                for file in glob_children(folder, "") {
                    if file.extension().is_some_and(|e| e == "conf") {
                        read_loader_configuration(&file, folders, depth + 1);
                    }
                }
            }
            Some(_) => {}
            None => folders.push(PathBuf::from(line)),
        }
    }
}

/// The files of a folder whose names start with `prefix`, newest (last by name) first.
pub(crate) fn glob_children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|e| e.file_name().to_str().is_some_and(|n| n.starts_with(prefix)))
        .map(|e| e.path())
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
}

/// The package folders of the Python on PATH: `lib/python3.x/site-packages` next to its `bin`, and
/// those in `~/.local`. If none of them has a folder `nvidia` (`python3` may be a wrapper script),
/// Python is run and lists its folders.
pub(crate) fn python_sites() -> &'static [PathBuf] {
    static SITES: OnceLock<Vec<PathBuf>> = OnceLock::new();
    SITES.get_or_init(|| {
        let Some(python) = on_path("python3").or_else(|| on_path("python")) else {
            return Vec::new();
        };
        let mut sites = Vec::new();
        let mut prefixes: Vec<PathBuf> = Vec::new();
        for file in [Some(python.clone()), python.canonicalize().ok()].into_iter().flatten() {
            prefixes.extend(file.parent().and_then(Path::parent).map(Path::to_owned));
        }
        prefixes.extend(std::env::var_os("HOME").map(|home| Path::new(&home).join(".local")));
        for prefix in prefixes {
            for version in glob_children(&prefix.join("lib"), "python3") {
                for name in ["site-packages", "dist-packages"] {
                    sites.push(version.join(name));
                }
            }
        }
        sites.retain(|s| s.is_dir());
        if sites.iter().all(|s| !s.join("nvidia").is_dir()) {
            sites.extend(ask_python(&python));
        }
        sites.dedup();
        sites
    })
}

const PYTHON_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

fn ask_python(python: &Path) -> Vec<PathBuf> {
    let code = "import sysconfig; print(sysconfig.get_paths()['purelib']); print(sysconfig.get_paths()['platlib'])";
    let Ok(mut child) = std::process::Command::new(python)
        .args(["-I", "-c", code])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
    else {
        return Vec::new();
    };
    let stdout = child.stdout.take();
    // Python starts in about 20 ms. It is killed if it hangs (on a folder of a dead network mount).
    let ended = super::wait::wait(child, PYTHON_PATIENCE);
    let mut folders = Vec::new();
    if let (Some(stdout), true) = (stdout, ended.is_some_and(|status| status.success())) {
        let _ = stdout.take(64 << 10).read_to_end(&mut folders);
    }
    String::from_utf8_lossy(&folders).lines().map(PathBuf::from).filter(|p| p.is_dir()).collect()
}

/// Finds an executable by name.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    folders_of("PATH").into_iter().map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The folders that a variable lists. Empty and relative entries are ignored: they refer to the
/// current folder, and other users may write to it.
pub(crate) fn folders_of(variable: &str) -> Vec<PathBuf> {
    let paths = std::env::var_os(variable).unwrap_or_default();
    std::env::split_paths(&paths).filter(|folder| folder.is_absolute()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loader_configuration_is_read_with_includes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/x.conf"), "# a comment\n/opt/x/lib # here\n").unwrap();
        std::fs::write(dir.path().join("d/x.other"), "/not/this").unwrap();
        let main = dir.path().join("ld.so.conf");
        std::fs::write(&main, format!("include {}/d/*.conf\n\n/opt/y\n", dir.path().display()))
            .unwrap();
        let mut folders = Vec::new();
        read_loader_configuration(&main, &mut folders, 0);
        assert_eq!(folders, [PathBuf::from("/opt/x/lib"), PathBuf::from("/opt/y")]);
    }
}
