// enums.h: enums. Rust checks its enums with the same names (kernel_src/src) against them.
#pragma once
enum class BlockScale : unsigned { F16, HalfE8M0, F16Down, SplitF16Down, Down, };
enum class Blocks : unsigned { None, Half, HalfPair, HalfE8M0, };
enum class Combine : unsigned { Add, Silu, Gelu, };
enum class Encoding : unsigned { F32, F16, BF16, Blocks, };
enum class Form : unsigned { Quantised, Plain, };
enum class Gate : unsigned { None, Silu, Gelu, };
enum class GroupScale : unsigned { One, Planes, SixBitPairs, NibblePair, Odd, Ue4m3, };
enum class Groups : unsigned {
    None,
    BytePair,
    NibblePair,
    Signed16,
    Signed32,
    Odd16,
    InSigns,
    InHigh,
    Ue4m3,
};
enum class KvStorage : unsigned { F32, F16, Q8_0, };
enum class NormKind : unsigned { Rms, Layer, };
enum class Offset : unsigned { None, Plus, MinusScaled, };
enum class Prologue : unsigned { None, Norm, Silu, Gelu, };
enum class Results : unsigned { Singles, Tiles, Panels, };
enum class Turn : unsigned { Signs, ShiftEach, ShiftAll, };
