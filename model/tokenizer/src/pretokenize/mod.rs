//! Pre-tokenizers: the boundaries that merges of byte-level BPE must not cross.
//!
//! A pre-tokenizer is a chain of [`Stage`]s. Each stage splits the pieces of the previous stage,
//! and nothing is dropped. Every stage is a scanner that looks at each character a limited number
//! of times, so the time is linear for any text. Each stage quotes the models' regular expression.

mod deepseek;
mod groups;
mod runs;
mod words;

/// Returns the end of the piece that starts at a byte offset. The stage sees only this text;
/// look-ahead stops at its end. The result is always greater than the offset.
pub(super) type Stage = fn(&[u8], usize) -> usize;

/// A pre-tokenizer, chosen by `tokenizer.ggml.pre`.
#[derive(Debug)]
pub(super) struct Pretokenizer {
    names: &'static [&'static str],
    /// The stages in order. Each splits the pieces of the previous stage.
    pub stages: &'static [Stage],
    /// Whether a piece that is a token becomes that token, regardless of merges.
    pub ignore_merges: bool,
    /// Whether BOS is added if the file has no key for it.
    pub add_bos: bool,
    /// Whether decoding removes spaces before punctuation ([`super::decode`]).
    pub clean_spaces: bool,
    /// Whether there is no default BOS (otherwise token 11).
    pub no_default_bos: bool,
    /// Whether pieces are matched as UTF-8 with U+2581 for spaces and `<0xXX>` tokens for other
    /// bytes. Otherwise they are matched in the 256-letter alphabet of byte-level BPE.
    pub raw_utf8: bool,
    /// Whether a run of line ends that is a token becomes that token, regardless of merges.
    pub whole_lines: bool,
    /// Whether white space only separates words and produces no token.
    pub words_only: bool,
}

const PLAIN: Pretokenizer = Pretokenizer {
    names: &[],
    stages: &[],
    ignore_merges: false,
    add_bos: false,
    clean_spaces: true,
    no_default_bos: false,
    raw_utf8: false,
    whole_lines: false,
    words_only: false,
};

static ALL: &[Pretokenizer] = &[
    Pretokenizer {
        names: &["default"],
        stages: &[runs::punctuation, words::gpt2, runs::numbers, runs::three_digits],
        ..PLAIN
    },
    Pretokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "exaone4",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
        ],
        stages: &[words::gpt2],
        ..PLAIN
    },
    Pretokenizer {
        names: &["trillion", "granite-docling"],
        stages: &[words::gpt2],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["smollm", "command-r"],
        stages: &[runs::number, words::gpt2],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        stages: &[runs::number, words::gpt2],
        ..PLAIN
    },
    Pretokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        stages: &[words::llama3],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    Pretokenizer {
        names: &["minicpm5"],
        stages: &[runs::up_to_three_numbers, words::llama3],
        ignore_merges: true,
        ..PLAIN
    },
    Pretokenizer { names: &["jais-2"], stages: &[words::jais2], ..PLAIN },
    Pretokenizer { names: &["dbrx", "smaug-bpe"], stages: &[words::llama3], ..PLAIN },
    Pretokenizer {
        names: &["chatglm-bpe"],
        stages: &[words::llama3],
        no_default_bos: true,
        ..PLAIN
    },
    Pretokenizer {
        names: &["glm4", "glm5"],
        stages: &[words::llama3],
        no_default_bos: true,
        ignore_merges: true,
        ..PLAIN
    },
    Pretokenizer {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "hunyuan",
            "grok-2",
            "solar-open",
        ],
        stages: &[words::qwen2],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        stages: &[words::qwen2],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["seed-coder"],
        stages: &[words::seed_coder],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer { names: &["ufakzeka"], stages: &[words::ufakzeka], clean_spaces: false, ..PLAIN },
    Pretokenizer {
        names: &["laguna"],
        stages: &[runs::lines, words::qwen2],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer { names: &["exaone-moe"], stages: &[words::exaone_moe], ..PLAIN },
    Pretokenizer { names: &["kimi-k2"], stages: &[words::kimi], clean_spaces: false, ..PLAIN },
    Pretokenizer {
        names: &["youtu"],
        stages: &[groups::youtu, words::youtu],
        ignore_merges: true,
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["tiny_aya", "cohere2moe"],
        stages: &[groups::up_to_numbers, groups::threes, words::tiny_aya],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["superbpe"],
        stages: &[runs::numbers, groups::before_threes],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer { names: &["bloom", "gpt3-finnish"], stages: &[groups::bloom], ..PLAIN },
    Pretokenizer { names: &["poro-chat"], stages: &[groups::bloom], clean_spaces: false, ..PLAIN },
    Pretokenizer {
        names: &["viking"],
        stages: &[groups::bloom, runs::number],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["chameleon"],
        stages: &[
            groups::sentinel,
            groups::image,
            groups::indents,
            runs::number,
            groups::each_punctuation,
            words::gpt2,
        ],
        add_bos: true,
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer { names: &["stablelm2", "megrez"], stages: &[words::qwen2], ..PLAIN },
    Pretokenizer { names: &["qwen35"], stages: &[words::qwen35], clean_spaces: false, ..PLAIN },
    Pretokenizer {
        names: &["tekken"],
        stages: &[words::tekken],
        ignore_merges: true,
        add_bos: true,
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        stages: &[words::gpt4o],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["granite-embed-multi-97m"],
        stages: &[words::granite_embed],
        ignore_merges: true,
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["falcon"],
        stages: &[runs::punctuation_and_backtick, words::gpt2, runs::three_digits],
        ..PLAIN
    },
    Pretokenizer {
        names: &["deepseek-llm"],
        stages: &[
            runs::newline,
            deepseek::letters,
            deepseek::punctuation,
            runs::trailing_space,
            deepseek::cjk,
            runs::numbers,
        ],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["deepseek-coder"],
        stages: &[
            runs::newline,
            deepseek::space_letters,
            deepseek::space_punctuation,
            deepseek::cjk,
            runs::number,
        ],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        stages: &[runs::up_to_three_numbers, deepseek::han_kana, deepseek::v3],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["spark2_5"],
        stages: &[runs::up_to_three_numbers, deepseek::han_kana, deepseek::spark, runs::number],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["afmoe"],
        stages: &[groups::up_to_numbers, groups::threes, groups::asian, deepseek::v3],
        clean_spaces: false,
        ..PLAIN
    },
    Pretokenizer {
        names: &["gemma4", "granite-embed-multi-311m"],
        stages: &[runs::lines],
        raw_utf8: true,
        whole_lines: true,
        ..PLAIN
    },
    Pretokenizer {
        names: &["whitespace"],
        stages: &[groups::words],
        raw_utf8: true,
        words_only: true,
        ..PLAIN
    },
    Pretokenizer {
        names: &["sarvam-moe"],
        stages: &[runs::lines],
        raw_utf8: true,
        clean_spaces: false,
        ..PLAIN
    },
];

impl Pretokenizer {
    /// The pre-tokenizer with this name, if it is known.
    pub fn find(name: &str) -> Option<&'static Pretokenizer> {
        ALL.iter().find(|p| p.names.contains(&name))
    }

    /// All names that [`Self::find`] accepts.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().flat_map(|p| p.names.iter().copied())
    }

    /// Calls `emit` with the pieces of a text from [`super::chars::normalize`], in order.
    pub fn split<'t>(&self, text: &'t [u8], emit: &mut impl FnMut(&'t [u8])) {
        split(self.stages, text, emit);
    }
}

fn split<'t>(stages: &[Stage], text: &'t [u8], emit: &mut impl FnMut(&'t [u8])) {
    let Some((first, rest)) = stages.split_first() else {
        return emit(text);
    };
    let mut pos = 0;
    while pos < text.len() {
        let end = first(text, pos).clamp(pos + 1, text.len());
        split(rest, text.get(pos..end).unwrap_or_default(), emit);
        pos = end;
    }
}

#[cfg(test)]
mod tests;
