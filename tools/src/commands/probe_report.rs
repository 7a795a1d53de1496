//! The report of `kjit probe`: a text of at most 4 KB, and a JSON document. It contains names of
//! products, versions and measurements. Paths, the user's name and the machine's name are removed.

use kjit_model::elide::elide;
use kjit_model::gpu::card::Figure;
use serde_json::{Value, json};
use std::fmt::Write;

/// Maximum bytes of the text.
pub const MAX_BYTES: usize = 4096;
/// Maximum characters of a remark. The first value with which the text fits is used.
const REMARKS: [usize; 4] = [90, 45, 20, 0];

/// A report.
pub struct Report {
    quick: bool,
    about: Vec<(&'static str, String)>,
    /// All measured figures.
    pub figures: Vec<Figure>,
    /// The verdict on the kernels.
    pub kernels: Kernels,
    /// Duration of the probe in seconds.
    pub seconds: f64,
}

/// The verdict on the kernels' cases.
pub enum Kernels {
    /// The cases were not run, for this reason.
    NotRun(&'static str),
    /// The cases could not be run.
    Failed(String),
    /// The cases that ran, and the names of the wrong ones.
    Run { all: usize, wrong: Vec<String> },
}

impl Report {
    pub fn new(quick: bool, about: Vec<(&'static str, String)>) -> Report {
        let about = about.into_iter().map(|(name, said)| (name, public(&said))).collect();
        let kernels = Kernels::NotRun("not reached");
        Report { quick, about, figures: vec![], kernels, seconds: 0.0 }
    }

    /// The value of a figure.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|f| f.name == name).and_then(|f| f.value)
    }

    /// Whether every kernel that ran was right.
    pub fn good(&self) -> bool {
        match &self.kernels {
            Kernels::NotRun(_) => true,
            Kernels::Failed(_) => false,
            Kernels::Run { wrong, .. } => wrong.is_empty(),
        }
    }

    /// The verdict on the kernels in words.
    fn said(&self) -> String {
        match &self.kernels {
            Kernels::NotRun(why) => (*why).to_owned(),
            Kernels::Failed(why) => format!("could not be run: {}", public(why)),
            Kernels::Run { all, wrong } if wrong.is_empty() => {
                format!("{all} of {all} cases right")
            }
            Kernels::Run { all, wrong } => {
                let right = all - wrong.len();
                let some: Vec<&str> = wrong.iter().take(6).map(String::as_str).collect();
                format!("{right} of {all} cases right; wrong: {}", some.join(", "))
            }
        }
    }

    pub fn text(&self) -> String {
        let fits = |text: &String| text.len() <= MAX_BYTES;
        let all = REMARKS.map(|remark| self.text_with(remark));
        let [.., shortest] = &all;
        let chosen = all.iter().find(|text| fits(text)).unwrap_or(shortest);
        let end = (0..=MAX_BYTES.min(chosen.len())).rev().find(|at| chosen.is_char_boundary(*at));
        chosen.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
    }

    fn text_with(&self, remark: usize) -> String {
        let quick = if self.quick { ", quick" } else { "" };
        let version = env!("CARGO_PKG_VERSION");
        let mut out = format!("kjit {version} probe{quick}, {:.0} s\n\n", self.seconds);
        for (name, said) in &self.about {
            let _ = writeln!(out, "{name}: {}", elide(said, 120));
        }
        out.push('\n');
        for figure in &self.figures {
            let Figure { name, value, unit, note } = figure;
            let shown = value.map_or("–".to_owned(), |value| format!("{} {unit}", digits(value)));
            let note = match note.is_empty() || remark == 0 {
                true => String::new(),
                false => format!(" ({})", elide(&public(note), remark)),
            };
            let _ = writeln!(out, "{name}: {shown}{note}");
        }
        let _ = writeln!(out, "\nkernels: {}", elide(&self.said(), 400));
        out
    }

    pub fn json(&self) -> Value {
        let about: serde_json::Map<String, Value> =
            self.about.iter().map(|(name, said)| ((*name).to_owned(), json!(said))).collect();
        let figure = |f: &Figure| json!({ "name": f.name, "value": f.value, "unit": f.unit, "note": public(&f.note) });
        let (all, wrong) = match &self.kernels {
            Kernels::Run { all, wrong } => (Some(*all), wrong.clone()),
            _ => (None, vec![]),
        };
        json!({
            "kjit": env!("CARGO_PKG_VERSION"),
            "quick": self.quick,
            "seconds": self.seconds,
            "about": about,
            "figures": self.figures.iter().map(figure).collect::<Vec<_>>(),
            "kernels": { "said": self.said(), "cases": all, "wrong": wrong },
        })
    }
}

/// Three or four significant digits.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

/// Removes paths, this user's name and this machine's name from a text.
fn public(text: &str) -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let user = ["USER", "LOGNAME"].into_iter().filter_map(|name| std::env::var(name).ok());
    let private: Vec<String> = user
        .chain([read("/proc/sys/kernel/hostname")])
        .filter(|name| name.len() > 2 && name != "root")
        .collect();
    let is_path = |word: &str| {
        let word = word.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '/' && c != '~');
        let value = word.split_once('=').map_or(word, |(_, value)| value);
        [word, value].iter().any(|w| {
            let slashes = w.matches('/').count();
            (w.starts_with('/') && w.len() > 1) || w.starts_with("~/") || slashes > 1
        })
    };
    let words = text.split(' ').map(|word| {
        if is_path(word) {
            "(path)".to_owned()
        } else {
            private.iter().fold(word.to_owned(), |word, name| word.replace(name.as_str(), "…"))
        }
    });
    words.collect::<Vec<_>>().join(" ").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(note: &str, n: usize) -> Report {
        let about = vec![("card", "A card (gfx1100), 48 units".to_owned())];
        let figures = (0..n).map(|i| Figure::new(format!("figure {i}"), 0.5, "µs").note(note));
        Report { figures: figures.collect(), ..Report::new(false, about) }
    }

    #[test]
    fn report_text_has_every_figure_in_four_kilobytes() {
        let all = report(&"a long remark ".repeat(30), 60).text();
        assert!(
            all.len() <= MAX_BYTES
                && (0..60).all(|i| all.contains(&format!("figure {i}: 0.50 µs")))
        );
        let none = report("", 1000).text();
        assert!(none.len() <= MAX_BYTES && none.starts_with("kjit "), "{}", none.len());
    }

    #[test]
    fn paths_and_names_are_removed_and_units_stay() {
        for (text, want) in [
            ("cannot open /home/ann/.cache/x: denied", "cannot open (path) denied"),
            ("set: KJIT_CLANG=/opt/clang is not", "set: (path) is not"),
            ("at ('/usr/lib') and ~/x", "at (path) and (path)"),
            ("12 GB/s, 16.0 GT/s PCIe x16", "12 GB/s, 16.0 GT/s PCIe x16"),
            ("8192 × 4096 / 3", "8192 × 4096 / 3"),
        ] {
            assert_eq!(public(text), want);
        }
    }

    #[test]
    fn wrong_kernel_fails_report_and_is_named() {
        let mut one = report("", 1);
        assert!(one.good());
        one.kernels = Kernels::Run { all: 3, wrong: vec!["route 6 at wave 32".to_owned()] };
        assert!(
            !one.good() && one.text().contains("2 of 3 cases right; wrong: route 6 at wave 32")
        );
        one.kernels = Kernels::Failed("no /dev/kfd".to_owned());
        assert!(!one.good() && one.text().contains("could not be run: no (path)"));
    }
}
