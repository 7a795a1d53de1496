//! Finds the first of several strings in an answer that grows.

/// The first occurrence of one of several strings.
pub(super) enum Scan {
    /// The index of the string, and its position.
    Found(usize, usize),
    /// No string occurs yet, but one may start at this position.
    Until(usize),
}

pub(super) fn scan(text: &str, needles: &[&str]) -> Scan {
    // If several strings match at one position, the longest is used, because one may be a prefix of
    // another.
    let found = needles
        .iter()
        .enumerate()
        .filter_map(|(i, n)| text.find(n).map(|at| (at, std::cmp::Reverse(n.len()), i)));
    match found.min() {
        Some((at, _, i)) => Scan::Found(i, at),
        None => {
            let held =
                needles.iter().map(|n| crate::stop::partial_suffix(text, n)).max().unwrap_or(0);
            Scan::Until(text.len() - held)
        }
    }
}

/// Removes an incomplete marker at the end of a text. A single byte is not removed, because it may
/// be plain text.
pub(super) fn without_partial_marker<'a>(text: &'a str, marks: &[&str]) -> &'a str {
    let half = marks.iter().map(|mark| crate::stop::partial_suffix(text, mark)).max().unwrap_or(0);
    if half < 2 { text } else { text.get(..text.len() - half).unwrap_or(text) }
}
