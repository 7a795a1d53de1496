//! gfx1250's registers beyond 255: an instruction has eight bits for each register, and a mode
//! (`s_set_vgpr_msb`) has two more bits for the first, second and third source and for the result.
//! LLVM's `getVGPRLoweringOperandTables` maps the operands.

use crate::facts::destinations_of;
use crate::operand::{Operand, register};
use crate::text::Text;

/// The text of an instruction with the register numbers that the mode gives.
pub fn widened(line: &str, mode: u8) -> Result<String, String> {
    if mode == 0 {
        return Ok(line.to_owned());
    }
    let halves: Result<Vec<String>, String> =
        line.split("::").map(|half| one(half.trim(), mode)).collect();
    Ok(halves?.join(" :: "))
}

fn one(line: &str, mode: u8) -> Result<String, String> {
    let mut text = Text::parse(line);
    let to = destinations_of(line);
    let name = text.name.replace("v_dual_", "v_");
    let known =
        ["v_", "ds_", "global_"].iter().any(|p| name.starts_with(p)) && !name.starts_with("v_swap");
    for (k, operand) in text.operands.iter_mut().enumerate() {
        let bare = operand.trim_start_matches(['-', '|']);
        let bare = bare.strip_prefix("neg(").unwrap_or(bare);
        let inner = bare.trim_end_matches([')', '|']);
        let Some((Operand::Vector(first), count)) = register(inner) else { continue };
        let place = if k < to { 3 } else { k - to };
        if !known || place > 3 {
            return Err(format!("{line}: which of its registers a mode moves is unknown"));
        }
        let first = first + 256 * u16::from(mode >> (2 * place) & 3);
        let wide = if count == 1 {
            format!("v{first}")
        } else {
            format!("v[{first}:{}]", first + count - 1)
        };
        *operand = operand.replace(inner, &wide);
    }
    Ok(format!("{} {} {}", text.name, text.operands.join(", "), text.modifiers.join(" "))
        .trim_end()
        .to_owned())
}
