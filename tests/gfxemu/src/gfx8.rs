//! gfx8 names for instructions that gfx9 has under other names. The text of an instruction is
//! rewritten to gfx9's form before it is decoded.

use crate::target::Target;
use crate::text::Text;

/// The text of an instruction in gfx9's form. Other families' texts stay as they are.
///
/// - Additions of 32 bits with a carry have no `_co` in their names.
/// - gfx8 has no `global_` instructions. Kernels access global memory by `flat_` instructions,
///   which take the whole address from two vector registers. LLVM does not let the counter of LDS
///   cover them if they access global memory; neither does the emulator.
pub fn renamed(target: &Target, line: &str) -> String {
    if target.generation != 8 {
        return line.to_owned();
    }
    let mut text = Text::parse(line);
    for (old, new) in [
        ("v_add_u32", "v_add_co_u32"),
        ("v_sub_u32", "v_sub_co_u32"),
        ("v_subrev_u32", "v_subrev_co_u32"),
        ("v_addc_u32", "v_addc_co_u32"),
        ("v_subb_u32", "v_subb_co_u32"),
        ("v_subbrev_u32", "v_subbrev_co_u32"),
    ] {
        if let Some(encoding) = text.name.strip_prefix(old) {
            text.name = format!("{new}{encoding}");
            return joined(&text);
        }
    }
    if let Some(rest) = text.name.strip_prefix("flat_") {
        text.name = format!("global_{rest}");
        text.operands.push("off".to_owned());
        return joined(&text);
    }
    line.to_owned()
}

fn joined(text: &Text) -> String {
    let Text { name, operands, modifiers } = text;
    format!("{name} {} {}", operands.join(", "), modifiers.join(" ")).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gfx8_additions_and_accesses_get_names_of_gfx9() {
        let old = Target::new("gfx803", 64).unwrap();
        for (line, want) in [
            ("v_add_u32_e32 v0, vcc, v1, v2", "v_add_co_u32_e32 v0, vcc, v1, v2"),
            ("\tv_addc_u32_e64 v0, s[2:3], v1, 0, vcc", "v_addc_co_u32_e64 v0, s[2:3], v1, 0, vcc"),
            ("flat_load_dword v1, v[2:3] glc", "global_load_dword v1, v[2:3], off glc"),
            ("flat_store_byte v[0:1], v5", "global_store_byte v[0:1], v5, off"),
            ("s_add_u32 s0, s1, s2", "s_add_u32 s0, s1, s2"),
        ] {
            assert_eq!(renamed(&old, line), want);
            assert_eq!(renamed(&Target::new("gfx900", 64).unwrap(), line), line);
        }
    }
}
