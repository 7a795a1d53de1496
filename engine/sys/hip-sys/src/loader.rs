//! Finding and opening one of AMD's libraries, with a record of every place looked at.

use crate::Error;
use libloading::Library;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A place that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Why it was looked at: `KJIT_HIP_LIBRARY`, `ROCM_PATH`, `loader path`, `usual folder`,
    /// `Python package`.
    pub via: &'static str,
    /// File, folder, or the name given to the loader.
    pub place: PathBuf,
    /// What stood against it: `not there`, or the loader's words when it is there and does not
    /// open.
    pub why: String,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place.display())?;
        if self.why == NOT_THERE { Ok(()) } else { write!(f, " ({})", self.why) }
    }
}

const NOT_THERE: &str = "not there";

/// An opened library. It is never closed: AMD's runtimes keep threads and exit handlers of their
/// own.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The library.
    pub library: &'static Library,
    /// What was handed to the loader: an absolute path, or a soname.
    pub place: PathBuf,
    /// What was tried before it.
    pub tried: Vec<Tried>,
}

impl Opened {
    /// Opens one file.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the loader's words.
    pub fn file(search: &Search, file: &Path) -> Result<Opened, Error> {
        match open(file) {
            Ok(library) => Ok(Opened { library, place: file.to_owned(), tried: Vec::new() }),
            Err(why) => Err(search.not_found(vec![Tried {
                via: "named file",
                place: file.to_owned(),
                why,
            }])),
        }
    }

    /// The address of a symbol as a function; none when the library lacks it.
    ///
    /// # Safety
    /// `T` is the type of a function pointer with the signature that the vendor's header declares.
    #[must_use]
    pub unsafe fn symbol<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: the caller vouches for the type; the library is never closed.
        unsafe { self.library.get::<T>(name.as_bytes()) }.ok().map(|s| *s)
    }
}

/// How a library is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// What messages call it.
    pub library: &'static str,
    /// Sonames, newest first.
    pub names: &'static [&'static str],
    /// The variable that names the file; when it is set, nothing else is tried.
    pub variable: &'static str,
    /// What to install.
    pub package: &'static str,
}

impl Search {
    /// Opens the first that opens: the file named by the variable; `lib` of `ROCM_PATH` and
    /// `HIP_PATH`; the loader's own path; the usual folders; and the folders that `more` lists
    /// (those of Python packages), asked for only then.
    ///
    /// # Errors
    /// [`Error::NotFound`] with every place tried.
    pub fn open(&self, more: impl FnOnce() -> Vec<PathBuf>) -> Result<Opened, Error> {
        let mut tried = Vec::new();
        if let Some(file) = std::env::var_os(self.variable).filter(|v| !v.is_empty()) {
            let place = PathBuf::from(file);
            let why = match open(&place) {
                Ok(library) => return Ok(Opened { library, place, tried }),
                Err(why) => why,
            };
            tried.push(Tried { via: self.variable, place, why });
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
                Ok(library) => return Ok(Opened { library, place, tried }),
                Err(why) => why,
            };
            tried.push(Tried { via: "loader path", place, why });
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

    fn folder(&self, via: &'static str, folder: &Path, tried: &mut Vec<Tried>) -> Option<Opened> {
        let mut any = false;
        for place in self.names.iter().map(|name| folder.join(name)).filter(|p| p.is_file()) {
            any = true;
            match open(&place) {
                Ok(library) => {
                    return Some(Opened { library, place, tried: std::mem::take(tried) });
                }
                Err(why) => tried.push(Tried { via, place, why }),
            }
        }
        if !any {
            tried.push(Tried { via, place: folder.to_owned(), why: NOT_THERE.to_owned() });
        }
        None
    }

    fn not_found(&self, tried: Vec<Tried>) -> Error {
        Error::NotFound { library: self.library, tried, package: self.package }
    }
}

/// What is given to the loader to find a library by its name: the name. Where `LD_LIBRARY_PATH` has
/// an empty or a relative element, which means the folder in which the program happens to be
/// started, the loader would look there: then the files of that name in its other folders and in
/// the system's.
#[must_use]
pub fn for_loader(name: &str) -> Vec<PathBuf> {
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    place_by_place(name, &listed).unwrap_or_else(|| vec![PathBuf::from(name)])
}

/// The files of this name in the absolute folders of a list and in the system's; none where the
/// list has no others.
fn place_by_place(name: &str, listed: &OsStr) -> Option<Vec<PathBuf>> {
    // The loader takes a semicolon, too, and no list at all for an empty text.
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
    // SAFETY: loading runs the library's initialisers; it was named by the user or found under
    // AMD's name for it.
    match unsafe { Library::new(place) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => {
            // What dlopen said is the error's source; the error itself says only that it failed.
            let text = std::error::Error::source(&error)
                .map_or_else(|| error.to_string(), ToString::to_string);
            // The loader names the file that it misses first: another one than asked is a
            // dependency that is missing.
            let own =
                text.contains(&format!("{}: cannot open shared object file", place.display()));
            Err(if own { NOT_THERE.to_owned() } else { text })
        }
    }
}

/// Where ROCm's installers put it, newest first.
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

/// Folders below a Python's package folder that may hold ROCm's libraries.
pub const WHEEL_FOLDERS: &[&str] = &[
    "_rocm_sdk_core/lib",
    "_rocm_sdk_libraries/lib",
    "_rocm_sdk_devel/lib",
    "rocm_sdk_core/lib",
    "torch/lib",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_that_mean_the_working_directory_are_left_out() {
        let dir = std::env::temp_dir().join(format!("kjit-loader-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("libkjit-none.so.1");
        std::fs::write(&file, "x").unwrap();
        let found = |list: String| place_by_place("libkjit-none.so.1", OsStr::new(&list));
        let there = dir.display();
        assert_eq!(found(String::new()), None);
        assert_eq!(found(format!("{there}:/usr/lib")), None);
        for list in [
            format!(":{there}"),
            format!("{there}:"),
            format!("/x::{there}"),
            format!(".;{there}"),
            format!("a/b:{there}"),
        ] {
            assert_eq!(found(list.clone()), Some(vec![file.clone()]), "{list}");
        }
        assert_eq!(found(":".to_owned()), Some(vec![]));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
