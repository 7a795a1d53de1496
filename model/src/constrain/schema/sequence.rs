//! Comma-separated lists of required and optional entries: properties and items.
//!
//! All entries that may come next are in one row of the library's parser. A chain would decide on
//! one optional entry after another: it has five parser entries for each, and all of them are
//! visited after every value. A tree has four for each, and only its height is visited.

use super::items::{Item, Sequence};
use super::write::Writer;
use std::collections::HashMap;

/// Maximum number of rules for lists with a length.
const MAX_RULES: usize = 4000;

/// Repetitions of an entry, at least one.
fn again(is: &str, least: usize, most: Option<usize>) -> String {
    // This is larger than any answer.
    const MAX_ITEMS: usize = 1_000_000;
    let least = least.clamp(1, MAX_ITEMS) - 1;
    match most.filter(|most| *most <= MAX_ITEMS) {
        Some(0 | 1) => is.to_owned(),
        Some(most) => format!("{is} (\",\" {is}){{{least},{}}}", most - 1),
        None if least == 0 => format!("{is} (\",\" {is})*"),
        None => format!("{is} (\",\" {is}){{{least},}}"),
    }
}

impl Writer<'_> {
    /// A list of `least` to `most` entries; `None` if it would need too many rules.
    pub fn sequence(
        &mut self,
        items: &[Item],
        least: usize,
        most: Option<usize>,
    ) -> Option<Sequence> {
        let needed = items.iter().filter(|item| item.required).count();
        let endless = items.iter().any(|item| item.again);
        if most.is_some_and(|most| most < needed.max(least)) || (!endless && least > items.len()) {
            return Some(Sequence { some: None, none: false });
        }
        let most = most.filter(|most| endless || *most < items.len());
        let at_least = least.saturating_sub(needed);
        if most.is_none() && (at_least == 0 || (least == 1 && needed == 0)) {
            let some = if items.is_empty() { None } else { Some(self.tree(items).0) };
            return Some(Sequence { some, none: least == 0 && needed == 0 });
        }
        if most == Some(0) {
            return Some(Sequence { some: None, none: true });
        }
        if let ([only], false) = (items, needed > 0) {
            // Only repetitions of one entry.
            let some = self.rule(&again(&only.is, least, most));
            return Some(Sequence { some: Some(some), none: least == 0 });
        }
        let widest = most.unwrap_or(least).max(least);
        if items.len().saturating_mul(widest.min(items.len()) + 1) > MAX_RULES {
            return None;
        }
        let some = self.counted(items, 0, (least, most), false, &mut HashMap::new());
        Some(Sequence { some, none: least == 0 && needed == 0 })
    }

    /// A non-empty list of entries, and whether one of them is required.
    fn tree(&mut self, items: &[Item]) -> (String, bool) {
        if let [one] = items {
            let is = match one.again {
                true => self.rule(&again(&one.is, 0, None)),
                false => one.is.clone(),
            };
            return (is, one.required);
        }
        let (left, right) = items.split_at(items.len() / 2);
        let ((a, a_required), (b, b_required)) = (self.tree(left), self.tree(right));
        let both = format!("{a} \",\" {b}");
        let is = match (a_required, b_required) {
            (true, true) => both,
            (true, false) => format!("{a} | {both}"),
            (false, true) => format!("{b} | {both}"),
            (false, false) => format!("{a} | {b} | {both}"),
        };
        (self.rule(&is), a_required || b_required)
    }

    /// The list from entry `at` on with this length; `None` if there is no such list. An empty list
    /// is `""`.
    fn counted(
        &mut self,
        items: &[Item],
        at: usize,
        (least, most): (usize, Option<usize>),
        begun: bool,
        known: &mut HashMap<(usize, usize, Option<usize>, bool), Option<String>>,
    ) -> Option<String> {
        let key = (at, least, most, begun);
        if let Some(rule) = known.get(&key) {
            return rule.clone();
        }
        let comma = if begun { "\",\" " } else { "" };
        let mut ways = vec![];
        match items.get(at) {
            None => ways.extend((least == 0 && begun).then(|| "\"\"".to_owned())),
            Some(item) if item.again => {
                ways.extend(
                    (most != Some(0)).then(|| format!("{comma}{}", again(&item.is, least, most))),
                );
                ways.extend((least == 0 && begun).then(|| "\"\"".to_owned()));
            }
            Some(item) => {
                if most != Some(0) {
                    let left = (least.saturating_sub(1), most.map(|most| most - 1));
                    let rest = self.counted(items, at + 1, left, true, known);
                    ways.extend(rest.map(|rest| format!("{comma}{} {rest}", item.is)));
                }
                if !item.required {
                    ways.extend(self.counted(items, at + 1, (least, most), begun, known));
                }
            }
        }
        let made = (!ways.is_empty()).then(|| self.rule(&ways.join(" | ")));
        known.insert(key, made.clone());
        made
    }

    /// A subset of these values, in any order.
    pub fn subsets(&mut self, all: &[String], least: usize, most: Option<usize>) -> Sequence {
        let mut known = HashMap::new();
        let most = most.unwrap_or(all.len()).min(all.len());
        let some = if most == 0 { None } else { self.subset(all, 0, (least, most), &mut known) };
        Sequence { some, none: least == 0 }
    }

    /// The rest of a subset that already has the values of the mask.
    fn subset(
        &mut self,
        all: &[String],
        there: u32,
        (least, most): (usize, usize),
        known: &mut HashMap<u32, Option<String>>,
    ) -> Option<String> {
        if let Some(rule) = known.get(&there) {
            return rule.clone();
        }
        let count = there.count_ones() as usize;
        let mut ways: Vec<String> =
            (count > 0 && count >= least).then(|| "\"\"".to_owned()).into_iter().collect();
        for (i, one) in
            all.iter().enumerate().filter(|(i, _)| there & (1 << i) == 0 && count < most)
        {
            let comma = if count > 0 { "\",\" " } else { "" };
            let rest = self.subset(all, there | (1 << i), (least, most), known);
            ways.extend(rest.map(|rest| format!("{comma}{one} {rest}")));
        }
        let made = (!ways.is_empty()).then(|| self.rule(&ways.join(" | ")));
        known.insert(there, made.clone());
        made
    }
}
