//! Batches of events in msgpack, with vLLM's fields in vLLM's order.

use kjit_model::serve::{BlockEvent, BlockHash};

/// A batch: its time in seconds since 1970, and its encoded events.
pub fn batch(time: f64, events: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![];
    array(&mut out, 2);
    out.push(0xCB);
    out.extend(time.to_be_bytes());
    array(&mut out, events.len());
    events.iter().for_each(|event| out.extend_from_slice(event));
    out
}

/// An event as an array: its name, then its fields.
pub fn encode(event: &BlockEvent, medium: &str) -> Vec<u8> {
    let mut out = vec![];
    match event {
        BlockEvent::Stored { parent, blocks, tokens } => {
            // BlockStored: block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium.
            array(&mut out, 7);
            text(&mut out, "BlockStored");
            hashes(&mut out, blocks);
            match parent {
                Some(parent) => number(&mut out, short(parent)),
                None => out.push(NIL),
            }
            array(&mut out, tokens.len());
            tokens.iter().for_each(|token| number(&mut out, u64::from(*token)));
            number(&mut out, BlockEvent::TOKENS as u64);
            out.push(NIL);
            text(&mut out, medium);
        }
        BlockEvent::Removed { blocks } => {
            // BlockRemoved: block_hashes, medium.
            array(&mut out, 3);
            text(&mut out, "BlockRemoved");
            hashes(&mut out, blocks);
            text(&mut out, medium);
        }
        BlockEvent::Cleared => return encoded_cleared(),
    }
    out
}

/// The event that no block is cached.
pub fn encoded_cleared() -> Vec<u8> {
    let mut out = vec![];
    array(&mut out, 1);
    text(&mut out, "AllBlocksCleared");
    out
}

const NIL: u8 = 0xC0;

/// The hash as routers see it: its last 8 bytes as a number, as vLLM shortens SHA-256.
fn short(hash: &BlockHash) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = hash.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

fn hashes(out: &mut Vec<u8>, blocks: &[BlockHash]) {
    array(out, blocks.len());
    blocks.iter().for_each(|hash| number(out, short(hash)));
}

fn array(out: &mut Vec<u8>, len: usize) {
    match len {
        0..=15 => out.push(0x90 | len as u8),
        16..=0xFFFF => {
            out.push(0xDC);
            out.extend((len as u16).to_be_bytes());
        }
        _ => {
            out.push(0xDD);
            out.extend((len as u32).to_be_bytes());
        }
    }
}

fn number(out: &mut Vec<u8>, number: u64) {
    match number {
        0..=0x7F => out.push(number as u8),
        0x80..=0xFF => out.extend([0xCC, number as u8]),
        0x100..=0xFFFF => {
            out.push(0xCD);
            out.extend((number as u16).to_be_bytes());
        }
        0x1_0000..=0xFFFF_FFFF => {
            out.push(0xCE);
            out.extend((number as u32).to_be_bytes());
        }
        _ => {
            out.push(0xCF);
            out.extend(number.to_be_bytes());
        }
    }
}

/// A string of at most 255 bytes: names are short.
fn text(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let bytes = bytes.get(..bytes.len().min(255)).unwrap_or_default();
    match bytes.len() {
        len @ 0..=31 => out.push(0xA0 | len as u8),
        len => out.extend([0xD9, len as u8]),
    }
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::{array, batch, encode, number, text};
    use kjit_model::serve::{BlockEvent, BlockHash};

    /// Bytes of Python's msgpack 1.2.
    #[test]
    fn events_have_the_bytes_of_msgpack() {
        let mut hash = [0; 32];
        hash[24..].copy_from_slice(&0x0102_0304_0506_0708u64.to_be_bytes());
        let removed = BlockEvent::Removed { blocks: vec![BlockHash(hash), BlockHash([0; 32])] };
        let all = batch(1.5, &[encode(&removed, "GPU"), encode(&BlockEvent::Cleared, "GPU")]);
        let hex: String = all.iter().map(|byte| format!("{byte:02x}")).collect();
        let wanted = concat!(
            "92cb3ff80000000000009293ac426c6f636b52656d6f76656492cf010203040506070800a347",
            "505591b0416c6c426c6f636b73436c6561726564",
        );
        assert_eq!(hex, wanted);
        let tokens = vec![0, 127, 128, 255, 256, 65_535, 65_536, u32::MAX];
        let stored = BlockEvent::Stored { parent: None, blocks: vec![], tokens };
        let hex: String = encode(&stored, "CPU").iter().map(|byte| format!("{byte:02x}")).collect();
        let wanted = concat!(
            "97ab426c6f636b53746f72656490c098007fcc80ccffcd0100cdffffce00010000ceffffffff",
            "cc80c0a3435055",
        );
        assert_eq!(hex, wanted);
    }

    #[test]
    fn lengths_take_the_shortest_form() {
        let made = |make: &dyn Fn(&mut Vec<u8>)| {
            let mut out = vec![];
            make(&mut out);
            out
        };
        for (len, head) in [
            (15, &[0x9F][..]),
            (16, &[0xDC, 0, 16]),
            (65_535, &[0xDC, 255, 255]),
            (65_536, &[0xDD, 0, 1, 0, 0]),
        ] {
            assert_eq!(made(&|out| array(out, len)), head);
        }
        assert_eq!(made(&|out| number(out, 1 << 32))[..5], [0xCF, 0, 0, 0, 1]);
        assert_eq!(made(&|out| text(out, &"x".repeat(40)))[..2], [0xD9, 40]);
    }
}
