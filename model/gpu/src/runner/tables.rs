//! Page tables and pages on the device; `pages.rs` assigns pages to slots.

use super::pages::PageOperation;
use super::{GpuRunner, PageCount};
use kjit_engine::DeviceBuffer;
use kjit_exec::{KvPages, SessionError, Task};
use kjit_plan::Parts;

impl GpuRunner {
    /// The shared pages; `None` if each slot has its own memory.
    pub(super) fn page_count(&self) -> Option<PageCount> {
        self.pages.as_ref().map(|(pages, _)| pages.count())
    }

    /// Pages needed to write a slot's positions `first..end`.
    pub(super) fn pages_needed(&self, slot: usize, first: usize, end: usize) -> usize {
        self.pages.as_ref().map_or(0, |(pages, _)| pages.need(slot, first, end))
    }

    /// The pages of a slot in order.
    pub(super) fn pages_of(&self, slot: usize) -> &[u32] {
        self.pages.as_ref().map_or(&[], |(pages, _)| pages.of(slot))
    }

    /// Starts a slot with these pages.
    pub(super) fn begin_with(&mut self, slot: usize, with: &[u32]) -> Result<(), SessionError> {
        let Some((pages, _)) = &mut self.pages else { return Ok(()) };
        let changes = pages.begin(slot, with);
        self.change(&changes)
    }

    /// Copies recurrent states between slots or saved copies, in stream order.
    pub(super) fn copy_states(&self, from: usize, to: usize) -> Result<(), SessionError> {
        let r = &self.loaded;
        for ((state, _), parts) in r.caches.iter().zip(&r.plan.parts) {
            if let Parts::Slots { .. } = parts {
                let each = state.len() / parts.count().max(1);
                let of = |at: usize| state.slice(at * each..(at + 1) * each);
                if each > 0 {
                    r.stream.copy(&of(from)?, &of(to)?)?;
                }
            }
        }
        Ok(())
    }

    /// Releases all pages of a slot except those of its first `len` positions.
    pub(super) fn keep_pages(&mut self, slot: usize, len: usize) {
        if let Some((pages, _)) = &mut self.pages {
            pages.truncate(slot, len);
        }
    }

    /// Ensures that a slot can write positions `first..end`. `false` if there are too few free
    /// pages.
    pub(super) fn make_place(
        &mut self,
        slot: usize,
        first: usize,
        end: usize,
    ) -> Result<bool, SessionError> {
        let Some((pages, _)) = &mut self.pages else { return Ok(true) };
        match pages.reserve(slot, first, end) {
            None => Ok(false),
            Some(changes) => self.change(&changes).map(|()| true),
        }
    }

    /// As [`GpuRunner::make_place`], with an error if there are too few free pages.
    pub(super) fn take_place(
        &mut self,
        slot: usize,
        first: usize,
        end: usize,
    ) -> Result<(), SessionError> {
        match self.make_place(slot, first, end)? {
            true => Ok(()),
            false => Err(self.lack(self.pages_needed(slot, first, end))),
        }
    }

    fn lack(&self, needed: usize) -> SessionError {
        SessionError::Pages { needed, free: self.page_count().unwrap_or_default().free() }
    }

    /// Applies changes of tables and pages on the device, in stream order.
    fn change(&self, changes: &[PageOperation]) -> Result<(), SessionError> {
        let (Some((_, numbers)), r) = (&self.pages, &self.loaded) else { return Ok(()) };
        let stride = r.plan.table(self.context);
        for change in changes {
            match *change {
                PageOperation::Entry { slot, at, page } => {
                    let (page, at) = (page as usize, slot * stride + at);
                    r.stream.copy_in(
                        &numbers.slice(page..page + 1)?,
                        &r.control.pages.slice(at..at + 1)?,
                    )?;
                }
                PageOperation::Copy { from, to } => {
                    let in_pages = r.caches.iter().zip(&r.plan.parts).filter_map(
                        |(sides, parts)| match parts {
                            Parts::Pages(pages) => Some((sides, (*pages).max(1))),
                            Parts::Slots { .. } => None,
                        },
                    );
                    let sides = in_pages
                        .flat_map(|((keys, values), pages)| [(keys, pages), (values, pages)]);
                    for (cache, pages) in sides.filter(|(c, _)| !c.is_empty()) {
                        let each = cache.len() / pages;
                        let of = |page: u32| {
                            cache.slice(page as usize * each..(page as usize + 1) * each)
                        };
                        r.stream.copy(&of(from)?, &of(to)?)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The keys and values of one page, cache by cache; `None` if there are other states.
    fn parts_of_page(&self, page: u32) -> Option<Result<Vec<DeviceBuffer<u8>>, SessionError>> {
        let r = &self.loaded;
        let mut all = vec![];
        for ((keys, values), parts) in r.caches.iter().zip(&r.plan.parts) {
            for side in [keys, values].into_iter().filter(|side| !side.is_empty()) {
                let Parts::Pages(pages) = *parts else { return None };
                let each = side.len() / pages.max(1);
                match side.slice(page as usize * each..(page as usize + 1) * each) {
                    Ok(part) => all.push(part),
                    Err(error) => return Some(Err(error.into())),
                }
            }
        }
        Some(Ok(all))
    }

    /// As [`kjit_exec::Runner::page_format`].
    pub(super) fn page_format(&self) -> Option<String> {
        let r = &self.loaded;
        let whole = self.before.is_none() && self.pages.is_some() && r.meeting.is_none();
        whole.then(|| self.parts_of_page(0)).flatten()?.ok()?;
        let kinds: Vec<_> = self.graph.states.iter().map(|s| &s.kind).collect();
        Some(format!("gpu {} {:?} {kinds:?}", r.plan.target.id(), r.plan.caches))
    }

    /// As [`kjit_exec::Runner::read_page`].
    pub(super) fn read_page(&mut self, slot: usize, at: usize) -> Result<Vec<u8>, SessionError> {
        let page = self.pages_of(slot).get(at).copied().ok_or(SessionError::NoTokens)?;
        let parts = self.parts_of_page(page).ok_or(SessionError::NoTokens)??;
        let mut out = Vec::with_capacity(parts.iter().map(DeviceBuffer::len).sum());
        for part in parts {
            out.extend(self.loaded.stream.read(&part)?);
        }
        Ok(out)
    }

    /// As [`kjit_exec::Runner::write_page`].
    pub(super) fn write_page(
        &mut self,
        slot: usize,
        at: usize,
        bytes: &[u8],
    ) -> Result<bool, SessionError> {
        const PAGE: usize = PageCount::POSITIONS;
        let Some(sizes) = self.parts_of_page(0) else { return Ok(false) };
        let size: usize = sizes?.iter().map(DeviceBuffer::len).sum();
        if bytes.len() != size || !self.make_place(slot, at * PAGE, (at + 1) * PAGE)? {
            return Ok(false);
        }
        let page = self.pages_of(slot).get(at).copied().ok_or(SessionError::NoTokens)?;
        let mut rest = bytes;
        for part in self.parts_of_page(page).ok_or(SessionError::NoTokens)?? {
            let Some((here, after)) = rest.split_at_checked(part.len()) else { break };
            self.loaded.stream.write(&part, here)?;
            rest = after;
        }
        Ok(true)
    }

    /// Checks before any work that there are enough free pages for all of it.
    pub(super) fn all_have_place(&self, tasks: &[Task<'_>]) -> Result<(), SessionError> {
        let Some(pages) = self.page_count() else { return Ok(()) };
        // Recurrent states that are at another position are recomputed from the start.
        let from = |t: &Task<'_>| if self.reaches(t.slot, t.first) { t.first } else { 0 };
        let needed = tasks
            .iter()
            .map(|t| self.pages_needed(t.slot, from(t), t.first + t.tokens.len()))
            .sum();
        if needed <= pages.free() { Ok(()) } else { Err(self.lack(needed)) }
    }
}

impl KvPages for GpuRunner {
    fn count(&self) -> Option<PageCount> {
        self.page_count()
    }

    /// Recurrent states at another position are recomputed from the start. That also writes all
    /// positions in shared pages again.
    fn needed(&self, slot: usize, len: usize, end: usize) -> usize {
        let first = if self.reaches(slot, len) { len } else { 0 };
        self.pages_needed(slot, first, end)
    }

    fn reaches(&self, slot: usize, len: usize) -> bool {
        GpuRunner::reaches(self, slot, len)
    }

    fn users(&self, page: u32) -> usize {
        self.pages.as_ref().map_or(0, |(pages, _)| pages.users(page))
    }

    fn of(&self, slot: usize) -> &[u32] {
        self.pages_of(slot)
    }

    fn hold(&mut self, held: &[u32]) {
        if let Some((pages, _)) = &mut self.pages {
            pages.hold(held);
        }
    }

    fn release(&mut self, held: &[u32]) {
        if let Some((pages, _)) = &mut self.pages {
            pages.release(held);
        }
    }

    fn begin_as(
        &mut self,
        slot: usize,
        tokens: &[u32],
        pages: &[u32],
        copy: Option<usize>,
    ) -> Result<(), SessionError> {
        self.begin_with(slot, pages)?;
        if let Some(copy) = copy {
            // Going back to this position needs the token ids.
            self.put(slot, 0, tokens)?;
            self.copy_states(self.loaded.plan.slots + copy, slot)?;
            self.note(slot, |s| s.held = Some(tokens.len()));
        }
        Ok(())
    }

    fn copies(&self) -> usize {
        self.loaded.plan.copies()
    }

    fn keep_states(&mut self, slot: usize, len: usize, copy: usize) -> Result<bool, SessionError> {
        let fine = self.pages.is_some()
            && self.slot(slot).held == Some(len)
            && copy < self.loaded.plan.copies();
        if fine {
            self.copy_states(slot, self.loaded.plan.slots + copy)?;
        }
        Ok(fine)
    }
}
