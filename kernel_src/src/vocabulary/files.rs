//! The files of `kernel_src/gpu`, and the sources that consist of them.

use kjit_engine::Source;

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../gpu/", $name)))),*]
    };
}

/// The enums that exist both in Rust and in the GPU's code.
pub(crate) const ENUMS: &str = include_str!("../../gpu/enums.h");
/// The enums of kernels that work on rows. They are in a separate file, since all headers of a
/// kernel are part of its key.
pub(crate) const ROW_ENUMS: &str = include_str!("../../gpu/row_enums.h");

/// The kernels' files by name. A `.hip` file is a main file, a `.h` file a header; `shape.h` is
/// generated.
const FILES: &[(&str, &str)] = files! {
    "activations.h"
    "adjust.h"
    "adjust.hip"
    "argmax.h"
    "argmax.hip"
    "attend.h"
    "attend.hip"
    "attend_args.h"
    "attend_mma.h"
    "attend_mma.hip"
    "attend_wide.h"
    "attend_wide.hip"
    "batch_gemm.h"
    "batch_gemm.hip"
    "batch_tiles.h"
    "card.hip"
    "chosen.h"
    "combine.h"
    "combine.hip"
    "conv.h"
    "conv.hip"
    "decay.h"
    "decay.hip"
    "dequant.h"
    "dots.h"
    "draw.h"
    "draw.hip"
    "draw_few.h"
    "embed.h"
    "embed.hip"
    "enums.h"
    "expert_sum.h"
    "expert_sum.hip"
    "experts.h"
    "experts.hip"
    "flash.h"
    "flash.hip"
    "flash_args.h"
    "flash_wgmma.h"
    "flash_wgmma.hip"
    "gate.h"
    "gemm.h"
    "gemm.hip"
    "gemm_common.h"
    "gemm_wgmma.h"
    "gemm_wgmma.hip"
    "halves.h"
    "held.h"
    "hopper.h"
    "indexer_scores.h"
    "indexer_scores.hip"
    "keep.h"
    "keep.hip"
    "kjit.h"
    "kv.h"
    "kv_tiles.h"
    "latent.h"
    "latent.hip"
    "latent_flash.h"
    "latent_flash.hip"
    "linear.h"
    "linear.hip"
    "map.h"
    "map.hip"
    "matvec.h"
    "matvec.hip"
    "mma.h"
    "moe.h"
    "moe.hip"
    "noise.h"
    "norm_rows.h"
    "norm_rows.hip"
    "packets.h"
    "paged.h"
    "peer.h"
    "persist.h"
    "quantize.h"
    "quantize.hip"
    "read.h"
    "read.hip"
    "reduce.h"
    "reduce.hip"
    "repack.h"
    "repack.hip"
    "rope.h"
    "rope_kv.h"
    "rope_kv.hip"
    "route.h"
    "route.hip"
    "row_enums.h"
    "rows.h"
    "rows.hip"
    "sample.h"
    "scan.h"
    "scan.hip"
    "scores.h"
    "slices.h"
    "small_gemm.h"
    "small_gemm.hip"
    "softmax.h"
    "softmax.hip"
    "span_ring.h"
    "state.h"
    "stream.h"
    "stream_experts.h"
    "sums.h"
    "tiles.h"
    "tiles.hip"
    "top_keys.h"
    "top_keys.hip"
    "turned.h"
    "weights.h"
};

/// The main file of the kernel of this name; empty for an unknown name.
pub(crate) fn main_of(name: &str) -> &'static str {
    let of = |(file, _): &(&'static str, _)| file.strip_suffix(".hip") == Some(name);
    FILES.iter().find(|f| of(f)).map_or("", |(file, _)| file)
}

/// The source with all headers available; only headers that it includes count.
pub(crate) fn with_headers(source: Source) -> Source {
    let headers = FILES.iter().filter(|(f, _)| f.ends_with(".h"));
    headers.fold(source, |s, (f, text)| s.file(*f, *text))
}

/// The source with `file` as its main file, and all headers available.
pub(crate) fn source(name: &'static str, file: &'static str) -> Source {
    let text = FILES.iter().find(|(f, _)| *f == file).map_or("", |(_, text)| *text);
    debug_assert!(!text.is_empty(), "{file} is not in the list of files");
    with_headers(Source::new(name, file, text))
}
