//! General categories of characters in Unicode 15.1, the version of the vocabularies in GGUF files.
//! A newer table would split text in newer scripts differently.

mod runs;

use std::sync::LazyLock;

/// A Unicode general category.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are named as Unicode names the categories")]
pub enum Category {
    UppercaseLetter,
    LowercaseLetter,
    TitlecaseLetter,
    ModifierLetter,
    OtherLetter,
    NonspacingMark,
    SpacingMark,
    EnclosingMark,
    DecimalNumber,
    LetterNumber,
    OtherNumber,
    ConnectorPunctuation,
    DashPunctuation,
    OpenPunctuation,
    ClosePunctuation,
    InitialPunctuation,
    FinalPunctuation,
    OtherPunctuation,
    MathSymbol,
    CurrencySymbol,
    ModifierSymbol,
    OtherSymbol,
    SpaceSeparator,
    LineSeparator,
    ParagraphSeparator,
    Control,
    Format,
    Surrogate,
    PrivateUse,
    Unassigned,
}

impl Category {
    /// The categories in the order of the table's letters.
    const ALL: [Category; 30] = [
        Category::UppercaseLetter,
        Category::LowercaseLetter,
        Category::TitlecaseLetter,
        Category::ModifierLetter,
        Category::OtherLetter,
        Category::NonspacingMark,
        Category::SpacingMark,
        Category::EnclosingMark,
        Category::DecimalNumber,
        Category::LetterNumber,
        Category::OtherNumber,
        Category::ConnectorPunctuation,
        Category::DashPunctuation,
        Category::OpenPunctuation,
        Category::ClosePunctuation,
        Category::InitialPunctuation,
        Category::FinalPunctuation,
        Category::OtherPunctuation,
        Category::MathSymbol,
        Category::CurrencySymbol,
        Category::ModifierSymbol,
        Category::OtherSymbol,
        Category::SpaceSeparator,
        Category::LineSeparator,
        Category::ParagraphSeparator,
        Category::Control,
        Category::Format,
        Category::Surrogate,
        Category::PrivateUse,
        Category::Unassigned,
    ];

    /// L: any letter.
    pub fn is_letter(self) -> bool {
        (self as u8) <= Category::OtherLetter as u8
    }

    /// M: any mark.
    pub fn is_mark(self) -> bool {
        (Category::NonspacingMark as u8..=Category::EnclosingMark as u8).contains(&(self as u8))
    }

    /// N: any number.
    pub fn is_number(self) -> bool {
        (Category::DecimalNumber as u8..=Category::OtherNumber as u8).contains(&(self as u8))
    }

    /// P: any punctuation.
    pub fn is_punctuation(self) -> bool {
        (Category::ConnectorPunctuation as u8..=Category::OtherPunctuation as u8)
            .contains(&(self as u8))
    }

    /// S: any symbol.
    pub fn is_symbol(self) -> bool {
        (Category::MathSymbol as u8..=Category::OtherSymbol as u8).contains(&(self as u8))
    }

    /// Z: any separator.
    pub fn is_separator(self) -> bool {
        (Category::SpaceSeparator as u8..=Category::ParagraphSeparator as u8)
            .contains(&(self as u8))
    }
}

/// The first code point of each run of equal category, and that category.
static STARTS: LazyLock<Vec<(u32, Category)>> = LazyLock::new(|| {
    let mut all = Vec::new();
    let mut next = 0;
    let mut rest = runs::RUNS;
    while let Some(letter) = rest.bytes().next() {
        let category = Category::ALL.get(usize::from(letter.wrapping_sub(b'A'))).copied();
        all.push((next, category.unwrap_or(Category::Unassigned)));
        rest = rest.get(1..).unwrap_or_default();
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        next += rest.get(..digits).and_then(|count| count.parse::<u32>().ok()).unwrap_or(1);
        rest = rest.get(digits..).unwrap_or_default();
    }
    all
});

/// The general category of a code point.
pub fn category(point: u32) -> Category {
    if point > 0x10_FFFF {
        return Category::Unassigned;
    }
    let at = STARTS.partition_point(|(start, _)| *start <= point);
    at.checked_sub(1)
        .and_then(|at| STARTS.get(at))
        .map_or(Category::Unassigned, |(_, category)| *category)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_unicode_15_1() {
        let mut digest = 0xCBF2_9CE4_8422_2325u64;
        for point in 0..0x11_0000 {
            let place = Category::ALL.iter().position(|c| *c == category(point)).unwrap();
            digest = (digest ^ place as u64).wrapping_mul(0x100_0000_01B3);
        }
        assert_eq!(digest, runs::DIGEST);
        assert!(
            Category::ALL.iter().enumerate().all(|(place, category)| *category as usize == place)
        );
        assert_eq!(category(0x2FFC), Category::OtherSymbol, "assigned in 15.1");
        assert_eq!(category(0x105C0), Category::Unassigned, "assigned in 16.0");
        assert_eq!(category(0x11_0000), Category::Unassigned);
    }
}
