//! The element-wise primitives: names and result dtypes.

use crate::dtype::DType;

macro_rules! primitives {
    ($(#[$doc:meta])* $kind:ident { $($variant:ident $name:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each is its own name")]
        pub enum $kind { $($variant),* }

        impl $kind {
            /// All variants.
            pub const ALL: &[$kind] = &[$($kind::$variant),*];

            /// The name in the array API and in the kernels' functions.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($kind::$variant => $name),* }
            }
        }
    };
}

primitives! {
    /// Functions of one value.
    UnOp {
        Neg "negative", Abs "abs", Sign "sign", Not "bitwise_invert",
        Floor "floor", Ceil "ceil", Trunc "trunc", Round "round",
        Sqrt "sqrt", Exp "exp", Expm1 "expm1",
        Log "log", Log1p "log1p", Log2 "log2", Log10 "log10",
        Sin "sin", Cos "cos", Tan "tan", Asin "asin", Acos "acos", Atan "atan",
        Sinh "sinh", Cosh "cosh", Tanh "tanh", Asinh "asinh", Acosh "acosh", Atanh "atanh",
        Erf "erf",
        IsNan "isnan", IsInf "isinf", IsFinite "isfinite", SignBit "signbit",
    }
}

primitives! {
    /// Functions of two values of one dtype.
    BinOp {
        Add "add", Sub "subtract", Mul "multiply", Div "divide",
        FloorDiv "floor_divide", Rem "remainder", Pow "pow",
        Min "minimum", Max "maximum", Atan2 "atan2", Hypot "hypot",
        CopySign "copysign", NextAfter "nextafter", LogAddExp "logaddexp",
        And "bitwise_and", Or "bitwise_or", Xor "bitwise_xor",
        Shl "bitwise_left_shift", Shr "bitwise_right_shift",
        Eq "equal", Ne "not_equal", Lt "less", Le "less_equal",
        Gt "greater", Ge "greater_equal",
    }
}

impl UnOp {
    /// Whether it maps any dtype to bool.
    #[must_use]
    pub const fn tests(self) -> bool {
        matches!(self, UnOp::IsNan | UnOp::IsInf | UnOp::IsFinite | UnOp::SignBit)
    }

    /// Whether it takes only real floating-point values.
    #[must_use]
    pub const fn is_float(self) -> bool {
        use UnOp::{
            Acos, Acosh, Asin, Asinh, Atan, Atanh, Cos, Cosh, Erf, Exp, Expm1, Log, Log1p, Log2,
            Log10, SignBit, Sin, Sinh, Sqrt, Tan, Tanh,
        };
        matches!(
            self,
            Sqrt | Exp
                | Expm1
                | Log
                | Log1p
                | Log2
                | Log10
                | Sin
                | Cos
                | Tan
                | Asin
                | Acos
                | Atan
                | Sinh
                | Cosh
                | Tanh
                | Asinh
                | Acosh
                | Atanh
                | Erf
                | SignBit
        )
    }

    pub(crate) const fn result(self, x: DType) -> DType {
        if self.tests() { DType::Bool } else { x }
    }
}

impl BinOp {
    /// Whether its result is bool.
    #[must_use]
    pub const fn compares(self) -> bool {
        use BinOp::{Eq, Ge, Gt, Le, Lt, Ne};
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge)
    }

    /// Whether it takes only integers (and, except for the shifts, bools).
    #[must_use]
    pub const fn is_bits(self) -> bool {
        matches!(self, BinOp::And | BinOp::Or | BinOp::Xor | BinOp::Shl | BinOp::Shr)
    }

    /// Whether it takes only real floating-point values.
    #[must_use]
    pub const fn is_float(self) -> bool {
        use BinOp::{Atan2, CopySign, Div, Hypot, LogAddExp, NextAfter};
        matches!(self, Div | Atan2 | Hypot | CopySign | NextAfter | LogAddExp)
    }

    pub(crate) const fn result(self, x: DType) -> DType {
        if self.compares() { DType::Bool } else { x }
    }
}

/// The operation of a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is its own name")]
pub enum FoldOp {
    Sum,
    Prod,
    Max,
    Min,
    /// The index, in the folded axes, of the first greatest value; a NaN counts as the greatest.
    ArgMax,
    /// The index of the first least value; a NaN counts as the least.
    ArgMin,
}

impl FoldOp {
    /// The name in messages and kernels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FoldOp::Sum => "sum",
            FoldOp::Prod => "prod",
            FoldOp::Max => "max",
            FoldOp::Min => "min",
            FoldOp::ArgMax => "argmax",
            FoldOp::ArgMin => "argmin",
        }
    }

    /// Whether kernels of rows can compute it: not operations that depend on the position.
    pub(crate) const fn fits_row_kernels(self) -> bool {
        !matches!(self, FoldOp::ArgMax | FoldOp::ArgMin)
    }

    pub(crate) const fn result(self, x: DType) -> DType {
        match self {
            FoldOp::ArgMax | FoldOp::ArgMin => DType::I64,
            _ => x,
        }
    }
}
