// row_enums.h: the enums of the same names in kernel_src/src.
#pragma once
enum class Function : unsigned { Identity, Silu, GeluTanh, Relu, ReluSquared, Sigmoid, Tanh, Softplus, Clamp, SoftCap, ClampedSilu, Xielu, Above, Sqrt, };
enum class Gating : unsigned { Softmax, Sigmoid, Chosen, };
enum class Map : unsigned { Act, Affine, Gate, AddChosen, Spread, Sum, Slice, Concat, Dot, FromTiles, Rotate, Temper, };
