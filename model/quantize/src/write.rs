//! Computes and writes the files of a plan.

use crate::error::QuantizeError;
use crate::imatrix::Imatrix;
use crate::metadata::ALIGNMENT;
use crate::plan::{Plan, PlannedTensor, importance};
use crate::{RowError, quantize_rows};
use kjit_formats::format::Format;
use kjit_gguf::{Gguf, Tensor};
use std::fs::Permissions;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tempfile::NamedTempFile;

/// Number of weights that are computed between two writes. Each weight takes 4 bytes of one
/// thread's buffer, and at most 4 bytes of the output buffer.
const SLAB: usize = 16 << 20;

/// Weights of a task.
const TASK: usize = 64 << 10;

/// Progress: the tensor, the finished bytes of the source, and all bytes of the source.
pub type Progress<'a> = dyn FnMut(&str, u64, u64) -> ControlFlow<()> + 'a;

impl Plan {
    /// The paths of the files: `out`, or for several files `NAME-00001-of-00003.gguf` and so on.
    pub fn paths(&self, out: &Path) -> Vec<PathBuf> {
        if self.parts == 1 {
            return vec![out.to_owned()];
        }
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        let stem = name.strip_suffix(".gguf").unwrap_or(&name);
        let part = |no| format!("{stem}-{:05}-of-{:05}.gguf", no + 1, self.parts);
        (0..self.parts).map(|no| out.with_file_name(part(no))).collect()
    }

    /// Quantises on `threads` threads and writes the files. The files get their names after all are
    /// complete. Memory: the buffers of at most 2^24 weights.
    ///
    /// # Errors
    /// A file exists (unless `replace`) or cannot be written, a weight is not finite, or `progress`
    /// interrupted the work. In all cases no file is left.
    pub fn write(
        &self,
        gguf: &Gguf,
        imatrix: Option<&Imatrix>,
        out: &Path,
        replace: bool,
        threads: usize,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<PathBuf>, QuantizeError> {
        let paths = self.paths(out);
        let same = |a: &Path, b: &Path| matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b);
        for path in &paths {
            if gguf.paths().any(|source| same(source, path)) {
                return Err(QuantizeError::IsSource(path.clone()));
            }
            if !replace && path.symlink_metadata().is_ok() {
                return Err(QuantizeError::Exists(path.clone()));
            }
        }
        let total = gguf.tensors().iter().filter_map(|t| t.bytes()).sum();
        let (mut done, mut complete) = (0, vec![]);
        for (no, path) in paths.iter().enumerate() {
            let fail = |source| QuantizeError::Write { path: path.clone(), source };
            let mut file = temporary(path).map_err(fail)?;
            file.write_all(&self.header(no)).map_err(fail)?;
            for t in self.tensors.iter().filter(|t| t.part == no) {
                let tensor = gguf.tensor(&t.name)?;
                let before = done;
                let mut each = |bytes: u64| progress(&t.name, before + bytes, total);
                let mut sink = |bytes: &[u8]| file.write_all(bytes).map_err(fail);
                if t.from.id == t.to.id {
                    for (i, bytes) in tensor.data.chunks(SLAB).enumerate() {
                        sink(bytes)?;
                        go_on(each((i * SLAB + bytes.len()) as u64))?;
                    }
                } else {
                    let w = match (imatrix, gguf.tensor_info(&t.name)) {
                        (Some(imatrix), Some(info)) => importance(imatrix, info)?,
                        _ => None,
                    };
                    convert(t, &tensor, w, threads.max(1), &mut sink, &mut each)?;
                }
                let padding = t.bytes.next_multiple_of(ALIGNMENT) - t.bytes;
                sink(&[0; ALIGNMENT as usize][..padding as usize])?;
                done += tensor.data.len() as u64;
            }
            file.as_file().sync_all().map_err(fail)?;
            complete.push(file);
        }
        for (file, path) in complete.into_iter().zip(&paths) {
            let fail = |source| QuantizeError::Write { path: path.clone(), source };
            publish(file, path, replace).map_err(fail)?;
        }
        Ok(paths)
    }
}

/// A temporary file in the folder of `path`. It is removed unless it is published.
pub(crate) fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|f| !f.as_os_str().is_empty());
    tempfile::Builder::new().prefix(".kjit-quantize-").tempfile_in(folder.unwrap_or(Path::new(".")))
}

/// Renames a temporary file to its final name. It gets the usual permissions instead of permissions
/// for its owner only.
pub(crate) fn publish(file: NamedTempFile, path: &Path, replace: bool) -> io::Result<()> {
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    let kept = if replace { file.persist(path) } else { file.persist_noclobber(path) };
    kept.map(|_| ()).map_err(|e| e.error)
}

fn go_on(flow: ControlFlow<()>) -> Result<(), QuantizeError> {
    if flow.is_break() { Err(QuantizeError::Interrupted) } else { Ok(()) }
}

/// Quantises a tensor, slab after slab.
fn convert(
    t: &PlannedTensor,
    tensor: &Tensor<'_>,
    w: Option<&[f32]>,
    threads: usize,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), QuantizeError>,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<(), QuantizeError> {
    let unknown = |ty: &str| QuantizeError::Type { tensor: t.name.clone(), ty: ty.to_owned() };
    let from = Format::by_id(t.from.id).ok_or_else(|| unknown(t.from.name))?;
    let to = Format::by_id(t.to.id).ok_or_else(|| unknown(t.to.name))?;
    let cols = tensor.dims.first().map_or(1, |d| *d as usize);
    let of_matrix = tensor.dims.get(1).map_or(1, |d| *d as usize);
    let (Some(source_row), Some(row)) = (from.row_bytes(cols), to.row_bytes(cols)) else {
        return Err(unknown(t.to.name));
    };
    let (slab, task) = ((SLAB / cols).max(1), (TASK / cols).max(1));
    let mut out = vec![];
    for (i, source) in tensor.data.chunks(slab * source_row).enumerate() {
        let rows = source.len() / source_row;
        out.resize(rows * row, 0u8);
        let tasks = Mutex::new(
            source.chunks(task * source_row).zip(out.chunks_mut(task * row)).enumerate(),
        );
        let failed = Mutex::new(None::<(usize, RowError)>);
        let work = || {
            let mut x = vec![];
            loop {
                let next = tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((at, (source, out))) = next else { break };
                let first = i * slab + at * task;
                let rows = source.len() / source_row;
                x.resize(rows * cols, 0.0);
                // The lengths match because these are whole rows.
                if from.decode(source, &mut x).is_err() {
                    break;
                }
                // Rows of different experts have different importance.
                let mut done = 0;
                while done < rows {
                    let matrix = (first + done) / of_matrix;
                    let many = (of_matrix - (first + done) % of_matrix).min(rows - done);
                    let w = w.and_then(|w| w.get(matrix * cols..(matrix + 1) * cols));
                    let x = &x[done * cols..(done + many) * cols];
                    let out = &mut out[done * row..(done + many) * row];
                    if let Err(e) = quantize_rows(to, cols, x, w, out) {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        // The first faulty row of the tensor is reported, with any number of
                        // threads.
                        if failed.as_ref().is_none_or(|(row, _)| first + done < *row) {
                            *failed = Some((first + done, e));
                        }
                        break;
                    }
                    done += many;
                }
            }
        };
        std::thread::scope(|scope| {
            let others = threads.min(rows.div_ceil(task)).saturating_sub(1);
            for _ in 0..others {
                // If no other thread could be started, this thread does all of the work.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        if let Some((row, e)) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let tensor = t.name.clone();
            return Err(QuantizeError::Row { tensor, source: e.in_row(row) });
        }
        sink(&out)?;
        let done = ((i * slab + rows) * source_row) as u64;
        go_on(progress(done))?;
    }
    Ok(())
}
