"""Element-wise functions of the array API, for tensors of any shape.

Two operands are broadcast and promoted; one of them may be a Python number, which gets the dtype of
the other. Comparisons and predicates return bool, all other functions the promoted dtype.

Raises ``ValueError`` if shapes cannot be broadcast or tensors are on two devices, and ``TypeError``
for a dtype that a function does not support (``bitwise_and`` of floats).

    >>> kjit.add(kjit.asarray([[1], [2]]), kjit.asarray([10, 20])).shape
    (2, 2)
"""

from __future__ import annotations

from . import _kjit
from ._kjit import Tensor

Operand = Tensor | bool | int | float | complex


def abs(x: Tensor, /) -> Tensor:
    """Absolute value. The result of a complex tensor is real."""
    return _kjit.unary("abs", x)


def acos(x: Tensor, /) -> Tensor:
    """Inverse cosine in radians; NaN outside [-1, 1]."""
    return _kjit.unary("acos", x)


def acosh(x: Tensor, /) -> Tensor:
    """Inverse hyperbolic cosine; NaN below 1."""
    return _kjit.unary("acosh", x)


def asin(x: Tensor, /) -> Tensor:
    """Inverse sine in radians; NaN outside [-1, 1]."""
    return _kjit.unary("asin", x)


def asinh(x: Tensor, /) -> Tensor:
    """Inverse hyperbolic sine."""
    return _kjit.unary("asinh", x)


def atan(x: Tensor, /) -> Tensor:
    """Inverse tangent in radians."""
    return _kjit.unary("atan", x)


def atanh(x: Tensor, /) -> Tensor:
    """Inverse hyperbolic tangent; NaN outside [-1, 1]."""
    return _kjit.unary("atanh", x)


def bitwise_invert(x: Tensor, /) -> Tensor:
    """Inverts every bit; logical not for bools."""
    return _kjit.unary("bitwise_invert", x)


def ceil(x: Tensor, /) -> Tensor:
    """The smallest integer that is not less than each element."""
    return _kjit.unary("ceil", x)


def cos(x: Tensor, /) -> Tensor:
    """Cosine of radians."""
    return _kjit.unary("cos", x)


def cosh(x: Tensor, /) -> Tensor:
    """Hyperbolic cosine."""
    return _kjit.unary("cosh", x)


def exp(x: Tensor, /) -> Tensor:
    """e to the power of each element."""
    return _kjit.unary("exp", x)


def expm1(x: Tensor, /) -> Tensor:
    """exp(x) - 1, accurate near 0."""
    return _kjit.unary("expm1", x)


def floor(x: Tensor, /) -> Tensor:
    """The largest integer that is not greater than each element."""
    return _kjit.unary("floor", x)


def isfinite(x: Tensor, /) -> Tensor:
    """Whether each element is neither infinite nor NaN: bool."""
    return _kjit.unary("isfinite", x)


def isinf(x: Tensor, /) -> Tensor:
    """Whether each element is infinite: bool."""
    return _kjit.unary("isinf", x)


def isnan(x: Tensor, /) -> Tensor:
    """Whether each element is NaN: bool."""
    return _kjit.unary("isnan", x)


def log(x: Tensor, /) -> Tensor:
    """Natural logarithm; NaN below 0, -inf at 0."""
    return _kjit.unary("log", x)


def log1p(x: Tensor, /) -> Tensor:
    """log(1 + x), accurate near 0."""
    return _kjit.unary("log1p", x)


def log2(x: Tensor, /) -> Tensor:
    """Logarithm to base 2."""
    return _kjit.unary("log2", x)


def log10(x: Tensor, /) -> Tensor:
    """Logarithm to base 10."""
    return _kjit.unary("log10", x)


def negative(x: Tensor, /) -> Tensor:
    """-x; integers wrap."""
    return _kjit.unary("negative", x)


def round(x: Tensor, /) -> Tensor:
    """The nearest integer; ties go to the even integer."""
    return _kjit.unary("round", x)


def sign(x: Tensor, /) -> Tensor:
    """-1, 0 or 1; complex: x / |x|."""
    return _kjit.unary("sign", x)


def signbit(x: Tensor, /) -> Tensor:
    """Whether the sign bit is set (also for -0.0): bool."""
    return _kjit.unary("signbit", x)


def sin(x: Tensor, /) -> Tensor:
    """Sine of radians."""
    return _kjit.unary("sin", x)


def sinh(x: Tensor, /) -> Tensor:
    """Hyperbolic sine."""
    return _kjit.unary("sinh", x)


def sqrt(x: Tensor, /) -> Tensor:
    """Square root; NaN below 0."""
    return _kjit.unary("sqrt", x)


def tan(x: Tensor, /) -> Tensor:
    """Tangent of radians."""
    return _kjit.unary("tan", x)


def tanh(x: Tensor, /) -> Tensor:
    """Hyperbolic tangent."""
    return _kjit.unary("tanh", x)


def trunc(x: Tensor, /) -> Tensor:
    """Each element rounded toward 0."""
    return _kjit.unary("trunc", x)


def add(x1: Operand, x2: Operand, /) -> Tensor:
    """Sum. Integers wrap."""
    return _kjit.binary("add", x1, x2)


def atan2(x1: Operand, x2: Operand, /) -> Tensor:
    """Angle of the point (x2, x1), in radians."""
    return _kjit.binary("atan2", x1, x2)


def bitwise_and(x1: Operand, x2: Operand, /) -> Tensor:
    """Bitwise and."""
    return _kjit.binary("bitwise_and", x1, x2)


def bitwise_left_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 * 2**x2; 0 if x2 is not less than the width in bits."""
    return _kjit.binary("bitwise_left_shift", x1, x2)


def bitwise_or(x1: Operand, x2: Operand, /) -> Tensor:
    """Bitwise or."""
    return _kjit.binary("bitwise_or", x1, x2)


def bitwise_right_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """floor(x1 / 2**x2)."""
    return _kjit.binary("bitwise_right_shift", x1, x2)


def bitwise_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """Bitwise exclusive or."""
    return _kjit.binary("bitwise_xor", x1, x2)


def copysign(x1: Operand, x2: Operand, /) -> Tensor:
    """Magnitude of x1 with the sign of x2."""
    return _kjit.binary("copysign", x1, x2)


def divide(x1: Operand, x2: Operand, /) -> Tensor:
    """Quotient. Integers are divided in float32."""
    return _kjit.binary("divide", x1, x2)


def equal(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 == x2: bool."""
    return _kjit.binary("equal", x1, x2)


def floor_divide(x1: Operand, x2: Operand, /) -> Tensor:
    """floor(x1 / x2). For integers 0 if x2 is 0."""
    return _kjit.binary("floor_divide", x1, x2)


def greater(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 > x2: bool."""
    return _kjit.binary("greater", x1, x2)


def greater_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 >= x2: bool."""
    return _kjit.binary("greater_equal", x1, x2)


def hypot(x1: Operand, x2: Operand, /) -> Tensor:
    """sqrt(x1**2 + x2**2), without overflow."""
    return _kjit.binary("hypot", x1, x2)


def less(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 < x2: bool."""
    return _kjit.binary("less", x1, x2)


def less_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 <= x2: bool."""
    return _kjit.binary("less_equal", x1, x2)


def logaddexp(x1: Operand, x2: Operand, /) -> Tensor:
    """log(exp(x1) + exp(x2)), without overflow."""
    return _kjit.binary("logaddexp", x1, x2)


def maximum(x1: Operand, x2: Operand, /) -> Tensor:
    """The greater element; NaN if either is NaN."""
    return _kjit.binary("maximum", x1, x2)


def minimum(x1: Operand, x2: Operand, /) -> Tensor:
    """The lesser element; NaN if either is NaN."""
    return _kjit.binary("minimum", x1, x2)


def multiply(x1: Operand, x2: Operand, /) -> Tensor:
    """Product. Integers wrap."""
    return _kjit.binary("multiply", x1, x2)


def nextafter(x1: Operand, x2: Operand, /) -> Tensor:
    """The next value after x1 toward x2."""
    return _kjit.binary("nextafter", x1, x2)


def not_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 != x2: bool."""
    return _kjit.binary("not_equal", x1, x2)


def pow(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 to the power of x2. Integers wrap."""
    return _kjit.binary("pow", x1, x2)


def remainder(x1: Operand, x2: Operand, /) -> Tensor:
    """Remainder of floor_divide, with the sign of x2. For integers 0 if x2 is 0."""
    return _kjit.binary("remainder", x1, x2)


def subtract(x1: Operand, x2: Operand, /) -> Tensor:
    """Difference. Integers wrap."""
    return _kjit.binary("subtract", x1, x2)


def clip(
    x: Tensor, /, min: Operand | None = None, max: Operand | None = None
) -> Tensor:
    """Each element limited to ``min`` … ``max``, which broadcast; the dtype is that of ``x``."""
    return _kjit.clip(x, min, max)


def conj(x: Tensor, /) -> Tensor:
    """The complex conjugate; real tensors are unchanged."""
    return _kjit.part("conj", x)


def imag(x: Tensor, /) -> Tensor:
    """The imaginary part, a real tensor."""
    return _kjit.part("imag", x)


def real(x: Tensor, /) -> Tensor:
    """The real part; real tensors are unchanged."""
    return _kjit.part("real", x)


def _logical(name: str, x: Operand) -> Operand:
    if isinstance(x, Tensor) and x.dtype != _kjit.bool:
        raise TypeError(f"{name} needs bool tensors, got {x.dtype.name}")
    return x


def logical_and(x1: Operand, x2: Operand, /) -> Tensor:
    """Logical and of bools."""
    return _kjit.binary("bitwise_and", _logical("logical_and", x1), _logical("logical_and", x2))


def logical_not(x: Tensor, /) -> Tensor:
    """Logical not of bools."""
    return _kjit.unary("bitwise_invert", _logical("logical_not", x))


def logical_or(x1: Operand, x2: Operand, /) -> Tensor:
    """Logical or of bools."""
    return _kjit.binary("bitwise_or", _logical("logical_or", x1), _logical("logical_or", x2))


def logical_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """Logical exclusive or of bools."""
    return _kjit.binary("bitwise_xor", _logical("logical_xor", x1), _logical("logical_xor", x2))


def positive(x: Tensor, /) -> Tensor:
    """Returns x."""
    return +x


def reciprocal(x: Tensor, /) -> Tensor:
    """1 / x."""
    return 1 / x


def square(x: Tensor, /) -> Tensor:
    """x * x."""
    return x * x
