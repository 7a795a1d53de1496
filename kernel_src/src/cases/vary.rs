//! The same case for another variant of its kernel: data and oracle stay, the launch and what follows from it change.

use super::{Case, CaseArg, Expect, Size};
use crate::kernel::{SpecError, require};
use crate::spec::Spec;
use kjit_engine::Target;

impl Case {
    /// Makes this case of [`sized`](super::sized) one of `spec`, which computes the same with another tuning. Working memory grows where the
    /// variant needs more, and never shrinks.
    ///
    /// # Errors
    /// As the family's; a family without variants.
    pub fn vary(&mut self, spec: &Spec, target: &Target, units: u32, size: Size) -> Result<(), SpecError> {
        let kernel = spec.kernel(target)?;
        match spec {
            Spec::Matvec(s) => {
                let blocks = s.blocks(target, units)?;
                self.numbers(&[blocks]);
                self.geometry = kernel.launch(blocks);
            }
            Spec::Experts(s) => {
                let blocks = s.blocks(target, units)?;
                self.numbers(&[blocks]);
                self.geometry = kernel.launch(blocks);
            }
            Spec::Gemm(s) => {
                let tokens =
                    self.args.iter().rev().nth(4).and_then(|a| if let CaseArg::U32(n) = a { Some(*n) } else { None });
                let launch = s.launch(target, tokens.unwrap_or(0) as usize, units)?;
                self.numbers(&[tokens.unwrap_or(0), launch.splits, launch.token_tiles, launch.tiles, launch.blocks]);
                let working = self.args.len().saturating_sub(8);
                self.working(working, "parts", launch.parts_bytes, 0xff, Expect::Anything);
                self.working(working + 1, "counters", 4 * launch.counters, 0, Expect::Same);
                self.geometry = launch.geometry;
            }
            Spec::Attend(s) => {
                let sequences = size.tokens.max(1) as u32;
                let splits = s.splits(target, units, sequences)?;
                let at = self.args.iter().position(|a| matches!(a, CaseArg::Buffer { name: "part", .. }));
                if let Some(at) = at {
                    self.working(at, "part", s.part_bytes(splits, sequences), 0xff, Expect::Anything);
                    self.working(at + 1, "counters", 4 * s.counters(sequences), 0, Expect::Same);
                }
                if let Some(number) = self.args.iter_mut().rev().find(|a| matches!(a, CaseArg::U32(_))) {
                    *number = CaseArg::U32(splits);
                }
                self.geometry = s.geometry(target, splits, sequences)?;
            }
            Spec::Flash(s) => self.geometry = s.geometry(target, size.tokens as u32)?,
            _ => require(false, spec.family(), || "it has one variant".to_owned())?,
        }
        self.kernel = kernel;
        Ok(())
    }

    /// Sets the last arguments.
    fn numbers(&mut self, values: &[u32]) {
        let from = self.args.len().saturating_sub(values.len());
        for (arg, value) in self.args.iter_mut().skip(from).zip(values) {
            *arg = CaseArg::U32(*value);
        }
    }

    /// Makes an argument working memory of at least so many bytes.
    fn working(&mut self, at: usize, name: &'static str, bytes: usize, fill: u8, expect: Expect) {
        match self.args.get_mut(at) {
            Some(CaseArg::Buffer { before, .. }) if before.len() < bytes => before.resize(bytes, fill),
            Some(arg @ CaseArg::Null) if bytes > 0 => {
                *arg = CaseArg::Buffer { name, before: vec![fill; bytes], expect };
            }
            _ => {}
        }
    }
}
