//! Finds and opens one of AMD's libraries, and records every path that it searched.

use crate::Error;
use crate::tried::{NOT_THERE, SearchedPath};
use libloading::Library;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An opened library. It is never closed, because AMD's runtimes have their own threads and exit
/// handlers.
#[derive(Clone, Debug)]
pub struct LoadedLibrary {
    /// Handle of the library.
    pub library: &'static Library,
    /// The name given to the loader: an absolute path, or a soname.
    pub place: PathBuf,
    /// The paths that were tried before.
    pub tried: Vec<SearchedPath>,
}

impl LoadedLibrary {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the message of the loader.
    pub fn file(search: &Search, file: &Path) -> Result<LoadedLibrary, Error> {
        match open(file) {
            Ok(library) => Ok(LoadedLibrary { library, place: file.to_owned(), tried: Vec::new() }),
            Err(why) => Err(search.not_found(vec![SearchedPath {
                via: "named file",
                place: file.to_owned(),
                why,
            }])),
        }
    }

    /// A symbol as a function pointer; `None` if the library lacks it.
    ///
    /// # Safety
    /// `T` is the type of a function pointer with the signature that the vendor's header declares.
    #[must_use]
    pub unsafe fn symbol<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: the caller guarantees the type; the library is never closed.
        unsafe { self.library.get::<T>(name.as_bytes()) }.ok().map(|s| *s)
    }
}

/// The search for a library.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Name of the library in messages.
    pub library: &'static str,
    /// Sonames, newest first.
    pub names: &'static [&'static str],
    /// The variable that names the file. If it is set, nothing else is searched.
    pub variable: &'static str,
    /// The package to install.
    pub package: &'static str,
}

impl Search {
    /// Opens the first library that can be opened. The order: the file named by the variable, `lib`
    /// of `ROCM_PATH` and `HIP_PATH`, the loader's path, the usual folders, and the folders that
    /// `more` lists (Python packages). `more` is only called if nothing was found before.
    ///
    /// # Errors
    /// [`Error::NotFound`] with all searched paths.
    pub fn open(&self, more: impl FnOnce() -> Vec<PathBuf>) -> Result<LoadedLibrary, Error> {
        let mut tried = Vec::new();
        if let Some(file) = std::env::var_os(self.variable).filter(|v| !v.is_empty()) {
            let place = PathBuf::from(file);
            let why = match open(&place) {
                Ok(library) => return Ok(LoadedLibrary { library, place, tried }),
                Err(why) => why,
            };
            tried.push(SearchedPath { via: self.variable, place, why });
            return Err(self.not_found(tried));
        }
        for variable in ["ROCM_PATH", "HIP_PATH"] {
            let Some(root) = std::env::var_os(variable).filter(|v| !v.is_empty()) else { continue };
            for folder in ["lib", "lib64"].map(|l| Path::new(&root).join(l)) {
                if let Some(opened) = self.folder(variable, &folder, &mut tried) {
                    return Ok(opened);
                }
            }
        }
        for place in self.names.iter().flat_map(|name| for_loader(name)) {
            let why = match open(&place) {
                Ok(library) => return Ok(LoadedLibrary { library, place, tried }),
                Err(why) => why,
            };
            tried.push(SearchedPath { via: "loader path", place, why });
        }
        for folder in usual_folders() {
            if let Some(opened) = self.folder("usual folder", &folder, &mut tried) {
                return Ok(opened);
            }
        }
        for folder in more() {
            if let Some(opened) = self.folder("Python package", &folder, &mut tried) {
                return Ok(opened);
            }
        }
        Err(self.not_found(tried))
    }

    fn folder(
        &self,
        via: &'static str,
        folder: &Path,
        tried: &mut Vec<SearchedPath>,
    ) -> Option<LoadedLibrary> {
        let mut any = false;
        for place in self.names.iter().map(|name| folder.join(name)).filter(|p| p.is_file()) {
            any = true;
            match open(&place) {
                Ok(library) => {
                    return Some(LoadedLibrary { library, place, tried: std::mem::take(tried) });
                }
                Err(why) => tried.push(SearchedPath { via, place, why }),
            }
        }
        if !any {
            tried.push(SearchedPath { via, place: folder.to_owned(), why: NOT_THERE.to_owned() });
        }
        None
    }

    fn not_found(&self, tried: Vec<SearchedPath>) -> Error {
        Error::NotFound { library: self.library, tried, package: self.package }
    }
}

/// The names to pass to the loader for a library: usually the plain name. An empty or relative
/// element in `LD_LIBRARY_PATH` refers to the current folder, which the loader would search. In
/// that case the result is the files with that name in the other folders of the list and in the
/// system's folders.
#[must_use]
pub fn for_loader(name: &str) -> Vec<PathBuf> {
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    place_by_place(name, &listed).unwrap_or_else(|| vec![PathBuf::from(name)])
}

/// The files with this name in the absolute folders of a list and in the system's folders; `None`
/// if all folders of the list are absolute.
#[must_use]
pub fn place_by_place(name: &str, listed: &OsStr) -> Option<Vec<PathBuf>> {
    // The loader also accepts semicolons. It treats an empty string as a missing list.
    let folders = listed
        .as_bytes()
        .split(|byte| matches!(byte, b':' | b';'))
        .map(|f| Path::new(OsStr::from_bytes(f)));
    let (absolute, other): (Vec<&Path>, Vec<&Path>) =
        folders.partition(|folder| folder.is_absolute());
    if listed.is_empty() || other.is_empty() {
        return None;
    }
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let system =
        ["/lib", "/usr/lib", "/usr/local/lib"].map(|root| Path::new(root).join(&multiarch));
    let usual = ["/usr/local/lib", "/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from);
    let folders = absolute.into_iter().map(Path::to_owned).chain(system).chain(usual);
    Some(folders.map(|folder| folder.join(name)).filter(|file| file.is_file()).collect())
}

fn open(place: &Path) -> Result<&'static Library, String> {
    // SAFETY: loading runs the initialisers of the library. The user named it, or it has the name
    // of AMD's library.
    match unsafe { Library::new(place) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => {
            // The message of dlopen is the source of the error; the error itself only says that
            // loading failed.
            let text = std::error::Error::source(&error)
                .map_or_else(|| error.to_string(), ToString::to_string);
            // The loader's message names the first missing file. If it is not the requested one, a
            // dependency is missing.
            let own =
                text.contains(&format!("{}: cannot open shared object file", place.display()));
            Err(if own { NOT_THERE.to_owned() } else { text })
        }
    }
}

/// The folders of ROCm's installers, newest first.
#[must_use]
pub fn usual_folders() -> Vec<PathBuf> {
    let mut versions: Vec<(Vec<u32>, PathBuf)> = std::fs::read_dir("/opt")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let version = name.to_str()?.strip_prefix("rocm-")?;
            Some((version.split(['.', '-']).map_while(|n| n.parse().ok()).collect(), entry.path()))
        })
        .collect();
    versions.sort();
    let mut roots = vec![PathBuf::from("/opt/rocm")];
    roots.extend(versions.into_iter().rev().map(|(_, path)| path));
    roots.push(PathBuf::from("/usr/lib/rocm"));
    roots.iter().flat_map(|root| ["lib", "lib64"].map(|l| root.join(l))).collect()
}

/// Subfolders of Python's package folders that may contain ROCm's libraries.
pub const WHEEL_FOLDERS: &[&str] = &[
    "_rocm_sdk_core/lib",
    "_rocm_sdk_libraries/lib",
    "_rocm_sdk_devel/lib",
    "rocm_sdk_core/lib",
    "torch/lib",
];
