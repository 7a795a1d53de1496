//! Names of GGUF files: which files are parts of one model, and which model a tag means. No file is
//! opened.

use crate::reference::{Pick, is_gguf, is_path};
use std::collections::BTreeMap;

/// The quantization that is used if a repository has several models and the reference names none.
pub const DEFAULT_QUANTIZATION: &str = "Q4_K_M";

/// A model among the files of a repository: one file, or the parts of a split one in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFiles {
    /// Paths in the repository. The first file is the one to open.
    pub files: Vec<String>,
    /// The first missing path, if a part is missing.
    pub missing: Option<String>,
}

impl ModelFiles {
    /// The path of the file to open.
    pub fn first(&self) -> &str {
        self.files.first().map_or("", String::as_str)
    }

    fn holds(&self, file: &str) -> bool {
        self.files.iter().any(|f| f == file)
    }
}

/// The error if a reference does not select one model. It lists the choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AmbiguousReference {
    /// No model matches.
    Nothing(Vec<String>),
    /// These models match.
    Several(Vec<String>),
}

/// Splits the name of a part: the text before `-00001-of-00003.gguf`, the number and the count.
fn split(path: &str) -> Option<(&str, u32, u32)> {
    let stem = path.get(..path.len().checked_sub(5)?).filter(|_| is_gguf(path))?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, no) = rest.rsplit_once('-')?;
    let number = |t: &str| {
        t.parse::<u32>().ok().filter(|_| t.len() == 5 && t.bytes().all(|b| b.is_ascii_digit()))
    };
    let (no, count) = (number(no)?, number(count)?);
    (1 <= no && no <= count).then_some((prefix, no, count))
}

/// Whether this is the name of a part of a split model.
pub(crate) fn is_part(path: &str) -> bool {
    split(path).is_some_and(|(.., count)| count > 1)
}

/// The models among these paths, by name. Image projectors (mmproj) and importance matrices
/// (imatrix) are not models. The run time depends on the existing parts, not on the count in a
/// name.
pub fn models<'a>(paths: impl IntoIterator<Item = &'a str>) -> Vec<ModelFiles> {
    // Parts that differ only in their number are one model.
    let mut split_models: BTreeMap<(&str, u32, &str), BTreeMap<u32, &str>> = BTreeMap::new();
    let mut found: Vec<ModelFiles> = vec![];
    for path in paths.into_iter().filter(|p| is_gguf(p) && is_path(p) && !is_beside(p)) {
        match split(path) {
            Some((prefix, no, count)) => {
                let ending = path.get(path.len().saturating_sub(5)..).unwrap_or_default();
                split_models.entry((prefix, count, ending)).or_default().insert(no, path);
            }
            None => found.push(ModelFiles { files: vec![path.to_owned()], missing: None }),
        }
    }
    for ((prefix, count, ending), there) in split_models {
        let missing = (1..=count).find(|no| !there.contains_key(no));
        found.push(ModelFiles {
            files: there.into_values().map(str::to_owned).collect(),
            missing: missing.map(|no| format!("{prefix}-{no:05}-of-{count:05}{ending}")),
        });
    }
    found.sort_by(|a, b| a.files.cmp(&b.files));
    found.dedup();
    found
}

fn is_beside(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    name.contains("mmproj") || name.starts_with("imatrix") || name.contains("-imatrix.gguf")
}

/// Whether this is an encoder of images (mmproj).
pub(crate) fn is_encoder(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    name.contains("mmproj") && is_gguf(path) && is_path(path) && !is_part(path)
}

/// The encoder of images that belongs to a model among these paths: one in the model's folder, else
/// one at the top of the repository. F16 is preferred to BF16, then come F32 and Q8_0.
pub(crate) fn encoder_of<'a>(
    paths: impl IntoIterator<Item = &'a str>,
    model: &ModelFiles,
) -> Option<&'a str> {
    const TYPES: [&str; 4] = ["f16", "bf16", "f32", "q8_0"];
    let own = folder(model.first());
    let rank = |path: &str| {
        let name = file_name(path).to_ascii_lowercase();
        let word = |ty: &&str| name.split(['-', '_', '.']).any(|word| word == *ty);
        // The word `q8_0` has a sign that separates words.
        let has = |ty: &&str| word(ty) || ty.contains('_') && name.contains(*ty);
        TYPES.iter().position(has).unwrap_or(TYPES.len())
    };
    let fits = |path: &&str| is_encoder(path) && [own, ""].contains(&folder(path));
    paths.into_iter().filter(fits).min_by_key(|path| (folder(path) != own, rank(path), *path))
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Quality of a tag's match: 2 at the end of the name, 1 inside the name, 0 no match. `Q4_K` is not
/// in `Q4_K_M`, and `Q4_0` not in `IQ4_0`.
fn fits(model: &ModelFiles, word: &str) -> u8 {
    let path = model.first();
    let name = file_name(split(path).map_or(path, |(prefix, ..)| prefix));
    let name = if is_gguf(name) { name.get(..name.len() - 5).unwrap_or(name) } else { name };
    let (name, word) = (name.to_ascii_lowercase(), word.to_ascii_lowercase());
    let begins = |at: usize| {
        name.get(..at).is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_']))
    };
    let after = |at: usize| name.get(at + word.len()..).unwrap_or_default();
    let ends = |at: usize| after(at).is_empty() || after(at).starts_with(['-', '.']);
    let best = name.match_indices(&word).filter(|(at, _)| begins(*at) && ends(*at));
    best.map(|(at, _)| if after(at).is_empty() { 2 } else { 1 }).max().unwrap_or(0)
}

/// The model that the reference means.
pub(crate) fn choose(models: &[ModelFiles], pick: &Pick) -> Result<ModelFiles, AmbiguousReference> {
    let firsts = |of: &[&ModelFiles]| of.iter().map(|m| m.first().to_owned()).collect::<Vec<_>>();
    let all: Vec<&ModelFiles> = models.iter().collect();
    let found: Vec<&ModelFiles> = match pick {
        Pick::File(file) => all.iter().copied().filter(|m| m.holds(file)).collect(),
        Pick::Tag(word) => {
            let best = models.iter().map(|m| fits(m, word)).max().unwrap_or(0);
            all.iter().copied().filter(|m| best > 0 && fits(m, word) == best).collect()
        }
        Pick::Default if all.len() == 1 => all.clone(),
        Pick::Default => {
            return choose(models, &Pick::Tag(DEFAULT_QUANTIZATION.to_owned())).map_err(|_| {
                match firsts(&all) {
                    none if none.is_empty() => AmbiguousReference::Nothing(none),
                    several => AmbiguousReference::Several(several),
                }
            });
        }
    };
    match found.as_slice() {
        [] => Err(AmbiguousReference::Nothing(firsts(&all))),
        [one] => Ok((*one).clone()),
        several => Err(AmbiguousReference::Several(firsts(several))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoder_stands_beside_its_model_f16_first() {
        let of = |paths: &[&'static str], model: &str| {
            let model = ModelFiles { files: vec![model.to_owned()], missing: None };
            encoder_of(paths.iter().copied(), &model)
        };
        let all = ["m.gguf", "mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-m-f16.gguf"];
        assert_eq!(of(&all, "m.gguf"), Some("mmproj-m-f16.gguf"));
        assert_eq!(of(&all[..3], "m.gguf"), Some("mmproj-BF16.gguf"));
        assert_eq!(
            of(&["m-mmproj-q8_0.gguf", "x/mmproj-f16.gguf"], "m.gguf"),
            Some("m-mmproj-q8_0.gguf")
        );
        // The model's own folder comes first, the top of the repository second.
        assert_eq!(of(&["mmproj-f16.gguf", "a/mmproj.gguf"], "a/m.gguf"), Some("a/mmproj.gguf"));
        assert_eq!(of(&["mmproj-f16.gguf", "b/mmproj.gguf"], "a/m.gguf"), Some("mmproj-f16.gguf"));
        assert_eq!(of(&["m.gguf", "mmproj.bin", "../mmproj.gguf"], "m.gguf"), None);
    }

    const REPO: &[&str] = &[
        "README.md",
        "config.json",
        "mmproj-F16.gguf",
        "imatrix_unsloth.gguf",
        "m-Q2_K.gguf",
        "m-Q4_0.gguf",
        "m-IQ4_XS.gguf",
        "m-Q4_K_M.gguf",
        "m-Q4_K_S.gguf",
        "m-Q4_K_L.gguf",
        "m-UD-Q4_K_XL.gguf",
        "m-Q8_0-00002-of-00002.gguf",
        "m-Q8_0-00001-of-00002.gguf",
        "BF16/m-BF16-00001-of-00003.gguf",
        "BF16/m-BF16-00003-of-00003.gguf",
        "m-f16.gguf",
        "m.Q5_K_M.gguf",
        "m-Q6_K-imat.gguf",
    ];

    fn chosen(word: &str) -> Result<ModelFiles, AmbiguousReference> {
        let pick = if word.is_empty() {
            Pick::Default
        } else if is_gguf(word) {
            Pick::File(word.into())
        } else {
            Pick::Tag(word.into())
        };
        choose(&models(REPO.iter().copied()), &pick)
    }

    #[test]
    fn tag_selects_file_with_equal_word() {
        for (word, file) in [
            ("Q4_K_M", "m-Q4_K_M.gguf"),
            ("q4_k_m", "m-Q4_K_M.gguf"),
            ("Q4_0", "m-Q4_0.gguf"),
            ("Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
            ("UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
            ("F16", "m-f16.gguf"),
            ("Q5_K_M", "m.Q5_K_M.gguf"),
            ("Q6_K", "m-Q6_K-imat.gguf"),
            ("IQ4_XS", "m-IQ4_XS.gguf"),
            ("", "m-Q4_K_M.gguf"),
            ("m-Q2_K.gguf", "m-Q2_K.gguf"),
            ("Q8_0", "m-Q8_0-00001-of-00002.gguf"),
            ("m-Q8_0-00002-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf"),
            ("m-Q4_K_M", "m-Q4_K_M.gguf"),
        ] {
            assert_eq!(chosen(word).map(|m| m.first().to_owned()), Ok(file.to_owned()), "{word}");
        }
        assert_eq!(chosen("Q8_0").unwrap().files.len(), 2);
        assert_eq!(
            chosen("BF16").unwrap().missing.as_deref(),
            Some("BF16/m-BF16-00002-of-00003.gguf")
        );
    }

    #[test]
    fn ambiguous_or_unknown_tag_lists_candidates() {
        for word in ["Q4_K", "Q9_9", "IQ4_0", "4_K_M", "mmproj", "other.gguf"] {
            let Err(AmbiguousReference::Nothing(all)) = chosen(word) else { panic!("{word}") };
            assert_eq!(all.len(), 12, "{word}: {all:?}");
        }
        let two = models(["a-Q4_0.gguf", "b-Q4_0.gguf"]);
        for pick in [Pick::Tag("Q4_0".into()), Pick::Default] {
            let Err(AmbiguousReference::Several(names)) = choose(&two, &pick) else {
                panic!("{pick:?}")
            };
            assert_eq!(names, ["a-Q4_0.gguf", "b-Q4_0.gguf"]);
        }
        assert_eq!(choose(&[], &Pick::Default), Err(AmbiguousReference::Nothing(vec![])));
    }

    #[test]
    fn many_split_parts_are_grouped_in_linear_time() {
        let names: Vec<String> = (0..20_000).map(|n| format!("m{n}-00001-of-99999.gguf")).collect();
        let parts: Vec<String> =
            (1..=99_999).map(|n| format!("whole-{n:05}-of-99999.gguf")).collect();
        let all = models(names.iter().chain(&parts).map(String::as_str));
        assert_eq!(all.len(), 20_001);
        assert_eq!(all[0].missing.as_deref(), Some("m0-00002-of-99999.gguf"));
        assert_eq!((all[20_000].files.len(), &all[20_000].missing), (99_999, &None));
        assert!(choose(&all, &Pick::File(parts[77_000].clone())).is_ok());
    }

    #[test]
    fn invalid_part_names_are_single_files() {
        for name in [
            "m-1-of-2.gguf",
            "m-00003-of-00002.gguf",
            "m-00000-of-00002.gguf",
            "-of-.gguf",
            "m-+0001-of-00002.gguf",
        ] {
            assert_eq!(models([name]), [ModelFiles { files: vec![name.into()], missing: None }]);
        }
        // Paths that lead out of their folder are not models.
        assert!(models(["../x.gguf", "/x.gguf", "a/../x.gguf", "a//x.gguf", ""]).is_empty());
    }
}
