//! A progress bar while a model is opened, on a terminal.
//!
//! It shows the part of the model file that is in the memory of this process: weights are read
//! through a map of the file, even if they are then copied to a GPU.

use crate::args::Shared;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A model that opens in this time has no bar.
const BAR_DELAY: Duration = Duration::from_millis(300);
/// Time between two updates.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of a page, as the kernel counts them in `statm` on x86-64 and most 64-bit Arm systems. If
/// pages are larger, the bar only shows too little.
const PAGE: u64 = 4096;

/// The progress bar. It is removed when this is dropped.
pub struct Loading(Option<(Sender<()>, JoinHandle<()>)>);

impl Loading {
    /// Begins a bar for this model. There is no bar with `-q`, or if stderr is not a terminal.
    pub fn begin(model: &Path, shared: &Shared) -> Loading {
        if shared.quiet || !io::stderr().is_terminal() {
            return Loading(None);
        }
        let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (all, before) = (bytes(model), mapped().unwrap_or(0));
        let (done, wait) = channel();
        let show = move || {
            let mut next = BAR_DELAY;
            let mut bar = None;
            while wait.recv_timeout(next) == Err(RecvTimeoutError::Timeout) {
                next = UPDATE_INTERVAL;
                let bar = bar.get_or_insert_with(|| drawn(&name, all));
                let read = mapped().unwrap_or(0).saturating_sub(before);
                bar.set_position(read.min(all));
            }
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
        };
        // If the thread cannot be started, there is no bar.
        let thread = std::thread::Builder::new().name("kjit-bar".to_owned()).spawn(show);
        Loading(thread.ok().map(|thread| (done, thread)))
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        if let Some((done, thread)) = self.0.take() {
            drop(done);
            let _ = thread.join();
        }
    }
}

fn drawn(name: &str, all: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(all), ProgressDrawTarget::stderr());
    let template = "loading {msg} {wide_bar} {bytes}/{total_bytes} {elapsed}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(name.to_owned());
    bar
}

/// Bytes of a model file, of all parts of a split model, or of all files in a folder.
fn bytes(model: &Path) -> u64 {
    let size = |path: &Path| path.metadata().map_or(0, |file| file.len());
    let files = |folder: &Path, good: &dyn Fn(&str) -> bool| -> u64 {
        let files = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let good = files.filter(|file| good(&file.file_name().to_string_lossy()));
        good.map(|file| size(&file.path())).sum()
    };
    if model.is_dir() {
        return files(model, &|name| name.ends_with(".safetensors"));
    }
    let name = model.file_name().unwrap_or_default().to_string_lossy();
    match (name.split_once("-00001-of-"), model.parent()) {
        (Some((begin, end)), Some(folder)) => {
            let end = format!("-of-{end}");
            files(folder, &|name| name.starts_with(begin) && name.ends_with(&end))
        }
        _ => size(model),
    }
}

/// Bytes of mapped files that are in the memory of this process.
fn mapped() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    pages.split(' ').nth(2)?.parse::<u64>().ok()?.checked_mul(PAGE)
}

#[cfg(test)]
mod tests {
    use super::{bytes, mapped};

    #[test]
    fn model_size_includes_all_its_files() {
        let folder = tempfile::tempdir().unwrap();
        for (name, size) in [
            ("m-00001-of-00002.gguf", 3),
            ("m-00002-of-00002.gguf", 4),
            ("n-00001-of-00002.gguf", 5),
            ("whole.gguf", 6),
            ("a.safetensors", 7),
            ("b.safetensors", 8),
        ] {
            std::fs::write(folder.path().join(name), vec![0; size]).unwrap();
        }
        assert_eq!(bytes(&folder.path().join("m-00001-of-00002.gguf")), 7);
        assert_eq!(bytes(&folder.path().join("whole.gguf")), 6);
        assert_eq!(bytes(folder.path()), 15);
        assert_eq!(bytes(&folder.path().join("missing.gguf")), 0);
        assert!(mapped().unwrap() > 0);
    }
}
