// row_enums.h: enums of kernels that work on rows. Rust checks its enums with the same names
// (kernel_src/src) against them.
#pragma once
enum class Function : unsigned {
    Identity,
    Silu,
    GeluTanh,
    Relu,
    ReluSquared,
    Sigmoid,
    Tanh,
    Softplus,
    Clamp,
    SoftCap,
    ClampedSilu,
    Xielu,
    Above,
    Sqrt,
};
enum class Gating : unsigned { Softmax, Sigmoid, Chosen, };
enum class Map : unsigned {
    Act,
    Affine,
    Gate,
    AddChosen,
    Spread,
    Sum,
    Slice,
    Concat,
    Dot,
    FromTiles,
    Rotate,
    Temper,
    Adapters,
};
