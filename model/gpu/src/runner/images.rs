//! Rows of images in prompts. The host copies them to the buffer of embeddings before a program
//! runs, and the kernel of the embedding leaves these rows as they are. So a pass may have tokens
//! and rows of images in any order, and captured launches do not change.
//!
//! If the rows of an image attend to each other, each image is a pass of its own, of a program with
//! other masks ([`kjit_plan::Plan::image`]). A pass may begin within an image, whose first rows are
//! in the cache: they were computed with the whole image.

use super::GpuRunner;
use crate::loaded_plan::NONE;
use kjit_engine::{Device, PinnedBuffer};
use kjit_exec::{FIRST_IMAGE_ID, ImageRows, ImageTable, SessionError};
use kjit_plan::Program;
use std::sync::Arc;

/// Rows of a staging buffer.
const ROWS: usize = 512;
/// Staging buffers. A copy waits for an earlier one only if more rows than all of these are in
/// flight.
const BUFFERS: usize = 4;

/// The rows of images of a session, and the page-locked memory from which they are copied.
pub(super) struct StagedImages {
    table: Arc<ImageTable>,
    /// The image that was found last.
    last: Option<Arc<ImageRows>>,
    /// Used in turns.
    staging: [PinnedBuffer<f32>; BUFFERS],
}

/// Consecutive tokens of a slot in a pass. Their ids are in the ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingRows {
    pub(super) slot: usize,
    /// Position of the first token.
    pub(super) first: usize,
    /// Number of tokens.
    pub(super) tokens: usize,
    /// Row of the first token in the program.
    pub(super) row: usize,
}

impl StagedImages {
    fn new(table: &Arc<ImageTable>, device: &Device) -> Result<StagedImages, SessionError> {
        let one = || device.pinned(ROWS * table.width());
        let staging = [one()?, one()?, one()?, one()?];
        Ok(StagedImages { table: Arc::clone(table), last: None, staging })
    }

    /// The image that has a row with this id.
    fn find(&mut self, id: u32, n_vocab: usize) -> Result<Arc<ImageRows>, SessionError> {
        if let Some(last) = self.last.as_ref().filter(|last| last.row(id).is_some()) {
            return Ok(Arc::clone(last));
        }
        let found = self.table.find(id).ok_or(SessionError::Token { id, n_vocab })?;
        self.last = Some(Arc::clone(&found));
        Ok(found)
    }

    /// Copies rows to consecutive rows of a program's embeddings, from row `first` on.
    fn copy(
        &mut self,
        runner: &GpuRunner,
        program: &Program,
        first: usize,
        rows: &[(Arc<ImageRows>, u32)],
    ) -> Result<(), SessionError> {
        let (r, width) = (&runner.loaded, self.table.width());
        let to = program.embedded.ok_or_else(|| {
            SessionError::Device("a program has no place for rows of images".to_owned())
        })?;
        let to = r.buffer(program, to)?.cast::<f32>()?;
        for (rows, first) in rows.chunks(ROWS).zip((first..).step_by(ROWS)) {
            self.staging.rotate_left(1);
            let [from, ..] = &self.staging;
            let from = from.slice(..rows.len() * width)?;
            from.write(|staged| {
                for (staged, (image, id)) in staged.chunks_exact_mut(width).zip(rows) {
                    if let Some(row) = image.row(*id) {
                        staged.copy_from_slice(row);
                    }
                }
            })?;
            r.stream.copy_in(&from, &to.slice(first * width..(first + rows.len()) * width)?)?;
        }
        Ok(())
    }

    /// Copies all rows of images in a pass.
    fn copy_all(
        &mut self,
        runner: &GpuRunner,
        program: &Program,
        pass: &[RingRows],
    ) -> Result<(), SessionError> {
        let n_vocab = runner.graph.n_vocab();
        for of in pass {
            let ring = of.slot * (runner.context + 1) + of.first;
            let mut run = vec![];
            for i in 0..of.tokens {
                let id = runner.loaded.control.tokens.peek(ring + i)?;
                // A token that the device has yet to choose is no row of an image.
                if id >= FIRST_IMAGE_ID && id != NONE {
                    run.push((self.find(id, n_vocab)?, id));
                } else if !run.is_empty() {
                    self.copy(runner, program, of.row + i - run.len(), &run)?;
                    run.clear();
                }
            }
            self.copy(runner, program, of.row + of.tokens - run.len(), &run)?;
        }
        Ok(())
    }
}

impl GpuRunner {
    /// As [`kjit_exec::Runner::set_images`].
    pub(super) fn set_images(&mut self, table: &Arc<ImageTable>) -> Result<(), SessionError> {
        if table.is_bidirectional() && self.loaded.plan.image.is_none() {
            let why = self.loaded.plan.no_image.as_deref();
            let why = why.unwrap_or("the model was opened for other images (image_rows)");
            return Err(SessionError::Images(format!(
                "rows of an image attend to each other, which {} does not compute here: {why}",
                self.opened().label()
            )));
        }
        if let Some(before) = &mut self.before {
            before.stage.set_images(table)?;
            self.bidirectional_images = table.is_bidirectional();
            return Ok(());
        }
        if self.far.is_some() {
            let why = "ranks of several processes take no images: give one process all devices";
            return Err(SessionError::Images(why.to_owned()));
        }
        table.check(&self.graph)?;
        self.others.runners.iter_mut().try_for_each(|other| other.set_images(table))?;
        self.images = Some(StagedImages::new(table, self.opened())?);
        self.bidirectional_images = table.is_bidirectional();
        Ok(())
    }

    /// The index of the program for an image's rows that attend to each other.
    pub(super) fn image_index(&self) -> usize {
        self.loaded.plan.prompts.len() + 1
    }

    /// Whether a task has rows of images that need passes of their own.
    pub(super) fn has_own_passes(&self, tokens: &[u32]) -> bool {
        self.bidirectional_images && tokens.iter().any(|id| *id >= FIRST_IMAGE_ID)
    }

    /// Checks that the last row of a task needs no pass together with rows before it.
    pub(super) fn ends_with_text(&self, tokens: &[u32]) -> Result<(), SessionError> {
        match *tokens {
            [.., before, last]
                if self.has_own_passes(&[before, last]) && last == before.wrapping_add(1) =>
            {
                Err(SessionError::Images("text must follow an image in the prompt".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// The next tokens of `left` whose ids are in the ring: whether they are rows of an image that
    /// need a pass of their own, and their number. All of them if images need no own passes.
    pub(super) fn next_rows(
        &self,
        slot: usize,
        at: usize,
        left: usize,
    ) -> Result<(bool, usize), SessionError> {
        if !self.bidirectional_images {
            return Ok((false, left));
        }
        let (ring, ids) = (slot * (self.context + 1) + at, &self.loaded.control.tokens);
        let is_row =
            |i: usize| ids.peek(ring + i).map(|id| (id, id >= FIRST_IMAGE_ID && id != NONE));
        let (first, image) = is_row(0)?;
        for i in 1..left {
            let (id, row) = is_row(i)?;
            let same = if image { row && id == first.wrapping_add(i as u32) } else { !row };
            if !same {
                return Ok((image, i));
            }
        }
        Ok((image, left))
    }

    /// Copies the rows of images of a pass to a program's embeddings, in stream order. Call it
    /// directly before the program.
    pub(super) fn show(
        &mut self,
        program: impl Fn(&GpuRunner) -> Result<&Program, SessionError>,
        pass: &[RingRows],
    ) -> Result<(), SessionError> {
        let Some(mut images) = self.images.take() else { return Ok(()) };
        let done = program(self).and_then(|program| images.copy_all(self, program, pass));
        self.images = Some(images);
        done
    }

    /// As [`GpuRunner::show`], for one token at each `(slot, position)`.
    pub(super) fn show_rows(&mut self, at: &[(usize, usize)]) -> Result<(), SessionError> {
        let one = |((slot, first), row): (&(usize, usize), usize)| RingRows {
            slot: *slot,
            first: *first,
            tokens: 1,
            row,
        };
        let pass: Vec<RingRows> = at.iter().zip(0..).map(one).collect();
        self.show(|runner| Ok(runner.rows_of(at.len())?.program), &pass)
    }
}
