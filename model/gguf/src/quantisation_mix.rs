//! The name of a file's quantisation mix.

use super::Gguf;
use std::cmp::Reverse;

/// llama.cpp's numbers of mixes (`enum llama_ftype`) and the names that its quantiser accepts.
const MIXES: [(u32, &str); 35] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4_MOE"),
    (39, "NVFP4"),
    (40, "Q1_0"),
];
/// This bit is set if the number was guessed.
const GUESSED: u32 = 1024;

impl Gguf {
    /// The name of the file's quantisation mix by `general.file_type`, as in llama.cpp (`Q4_K_M`).
    /// If the key is missing or unknown: the type with the most elements. Empty for a file without
    /// tensors.
    pub fn mix_name(&self) -> String {
        let number =
            self.opt_u32("general.file_type").ok().flatten().map(|number| number & !GUESSED);
        if let Some((_, name)) = MIXES.iter().find(|(known, _)| Some(*known) == number) {
            return (*name).to_owned();
        }
        let most = self.summary().mix.into_iter().min_by_key(|share| Reverse(share.elements));
        most.map_or_else(String::new, |share| share.ty.to_string().to_uppercase())
    }
}

#[cfg(test)]
mod tests {
    use super::MIXES;

    #[test]
    fn file_type_numbers_are_unique() {
        assert!(MIXES.windows(2).all(|two| two[0].0 < two[1].0), "sorted and unique");
    }
}
