//! kjit's short templates for files without a template. They support a system prompt and several
//! messages. A template is chosen by the architecture and by the special tokens: the vocabulary of
//! a model has special tokens for the chat format of its training.

use kjit_tokenizer::Tokenizer;

/// A chat format.
pub struct TurnFormat {
    pub name: &'static str,
    /// Architectures that use the format. An empty list means any architecture.
    architectures: &'static [&'static str],
    /// Special tokens that the vocabulary must have.
    tokens: &'static [&'static str],
    pub template: &'static str,
}

/// The first match is used.
const TURN_FORMATS: &[TurnFormat] = &[
    TurnFormat {
        name: "llama3",
        architectures: &["llama", "llama4"],
        tokens: &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        template: "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | \
                   trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ \
                   '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    },
    TurnFormat {
        name: "gemma",
        architectures: &["gemma", "gemma2", "gemma3", "gemma3n"],
        tokens: &["<start_of_turn>", "<end_of_turn>"],
        template: "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}{% set \
                   ns.system = m.content | trim + '\n\n' %}{% else %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else \
                   m.role) + '\n' + (ns.system if m.role == 'user' else '') + m.content | trim + \
                   '<end_of_turn>\n' }}{% if m.role \
                   == 'user' %}{% set ns.system = '' %}{% endif %}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ \
                   '<start_of_turn>model\n' }}{% endif %}",
    },
    TurnFormat {
        name: "command-r",
        architectures: &["command-r", "cohere2"],
        tokens: &[
            "<|START_OF_TURN_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
            "<|USER_TOKEN|>",
            "<|CHATBOT_TOKEN|>",
            "<|SYSTEM_TOKEN|>",
        ],
        template: "{{ bos_token }}{% for m in messages %}{{ '<|START_OF_TURN_TOKEN|>' + ('<|CHATBOT_TOKEN|>' if m.role == \
                   'assistant' else '<|SYSTEM_TOKEN|>' if m.role == 'system' else \
                   '<|USER_TOKEN|>') + m.content | trim + \
                   '<|END_OF_TURN_TOKEN|>' }}{% endfor %}{% if add_generation_prompt %}{{ \
                   '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
    },
    TurnFormat {
        name: "granite",
        architectures: &["granite", "granitemoe", "granitehybrid"],
        tokens: &["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"],
        template: "{% for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\n' }}{% \
                   endfor %}{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}",
    },
    TurnFormat {
        name: "phi3",
        architectures: &["phi3", "phimoe"],
        tokens: &["<|user|>", "<|assistant|>", "<|end|>"],
        template: "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}{% if \
                   add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    },
    TurnFormat {
        name: "glm4",
        architectures: &["chatglm", "glm4", "glm4moe"],
        tokens: &["[gMASK]", "<sop>", "<|user|>", "<|assistant|>"],
        template: "{{ '[gMASK]<sop>' }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}{% if \
                   add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
    },
    TurnFormat {
        name: "mistral",
        architectures: &["llama", "mistral3"],
        tokens: &["[INST]", "[/INST]"],
        template: "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}{% set \
                   ns.system = m.content + '\n\n' %}{% elif m.role == 'user' %}{{ '[INST] ' + ns.system + m.content + '[/INST]' \
                   }}{% set ns.system = '' %}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    },
    TurnFormat {
        name: "chatml",
        architectures: &[],
        tokens: &["<|im_start|>", "<|im_end|>"],
        template: "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}{% if \
                   add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    },
];

/// The format for an architecture and a vocabulary, if one is known.
pub fn find(architecture: &str, tokenizer: &Tokenizer) -> Option<&'static TurnFormat> {
    TURN_FORMATS.iter().find(|row| {
        let known = row.architectures.is_empty() || row.architectures.contains(&architecture);
        known && row.tokens.iter().all(|token| tokenizer.special_id(token).is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChatTemplate, Message};

    #[test]
    fn fallback_formats_write_turns_in_order() {
        for row in TURN_FORMATS {
            let template =
                ChatTemplate::new(row.name, row.template, Some("<s>".into()), Some("</s>".into()))
                    .unwrap();
            let talk =
                [("system", "Rules."), ("user", "One?"), ("assistant", "Two."), ("user", "Three?")];
            let prompt =
                template.render(talk.map(|(role, text)| Message::new(role, text)), true).unwrap();
            let places = talk.map(|(_, text)| {
                prompt.find(text).unwrap_or_else(|| panic!("{}: {prompt:?}", row.name))
            });
            assert!(places.is_sorted(), "{}: {prompt:?}", row.name);
            assert!(
                row.tokens.iter().all(|token| prompt.contains(token)),
                "{}: {prompt:?}",
                row.name
            );
            assert!(!prompt.contains('\t') && !prompt.contains("  "), "{}: {prompt:?}", row.name);
        }
    }
}
