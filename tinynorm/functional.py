"""Neural-network functions under PyTorch's names. Each takes Tensors or arrays and gives a Tensor.

The formulas are in `tinynorm.formulas`; here stands what each asks of its arguments.
"""

from typing import Any

import numpy as np

from . import backend, checks, table
from .convert import sizes
from .formulas.losses import Targets
from .op import Op
from .options import choice, finite, fraction, integer, nonnegative
from .random import Rng, generator
from .tensor import Tensor, apply, fresh, operand

__all__ = [
    "cross_entropy", "dropout", "elu", "gelu", "layer_norm", "leaky_relu", "linear", "log_softmax", "mse_loss",
    "nll_loss", "relu", "rms_norm", "sigmoid", "silu", "softmax", "softplus",
]  # fmt: skip

REDUCTIONS = ("mean", "sum", "none")
GELUS = ("none", "tanh")
EPS_MODES = ("inside", "outside")


def linear(x: Any, weight: Any, bias: Any = None) -> Tensor:
    """y = x Wᵀ + b.

    Args:
        x: (..., in).
        weight: (out, in).
        bias: (out,), or None.

    Returns:
        (..., out).

    Raises:
        ShapeError: where these do not fit.

    >>> import tinynorm as tn
    >>> tn.functional.linear([[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0], [0.0, 1.0]], [0.0, 0.0, 10.0])
    Tensor([[11., 17., 12.]], dtype=float32)
    """
    x = _floats("linear", "x", x)
    weight, bias = _floats("linear", "weight", weight, x), _optional("linear", "bias", bias, x)
    return apply(table.linear, x, weight, bias)


def rms_norm(
    x: Any,
    normalized_shape: Any,
    weight: Any = None,
    eps: float | None = 1e-5,
    *,
    bias: Any = None,
    partial: float = 1.0,
    weight_offset: float = 0.0,
    eps_mode: str = "inside",
) -> Tensor:
    """y = g ⊙ x / √(mean(x²) + ε), the mean being over the last axes.

    Args:
        x: (..., *normalized_shape).
        normalized_shape: the size of the last axis, or the sizes of the last axes.
        weight: g, of shape normalized_shape, or None for 1.
        eps: ε ≥ 0; None stands for the machine epsilon of x's dtype. With 0, a row of zeros gives 0, and its gradient
            counts as 0 (with `partial`, where the counted features are 0: the others are then ±∞).
        bias: added to y, of shape normalized_shape, or None.
        partial: p, above 0 and at most 1: the mean is that of the first ⌈p n⌉ of n features (pRMSNorm). Needs a single
            normalized axis.
        weight_offset: o, for the convention g = o + weight; with o = 1 the weight is 0 where the gain is 1.
        eps_mode: "inside" the root; or "outside", for x / (√mean(x²) + ε).

    Returns:
        of x's shape. float16 is computed in float32 and rounded at the end. Numbers whose squares overflow or underflow
        are scaled first.

    Raises:
        ShapeError: when x does not end in normalized_shape, weight or bias has another shape, or partial meets several
            axes.
        ArgumentError: for a negative eps, a partial that is no share, an unknown eps_mode.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

    >>> import tinynorm as tn
    >>> tn.functional.rms_norm([3.0, 4.0], 2, eps=0.0).numpy().round(4)
    array([0.8485, 1.1314], dtype=float32)
    >>> tn.functional.rms_norm([3.0, 4.0], 2, [0.0, 1.0], eps=0.0, partial=0.5, weight_offset=1.0).numpy().round(4)
    array([1.    , 2.6667], dtype=float32)
    """
    x = _floats("rms_norm", "x", x)
    weight, bias = _optional("rms_norm", "weight", weight, x), _optional("rms_norm", "bias", bias, x)
    shape = sizes("rms_norm", (normalized_shape,))
    checks.normalized("rms_norm", x, shape, weight, bias)
    outside = choice("rms_norm", "eps_mode", eps_mode, EPS_MODES) == "outside"
    count, offset = checks.features("rms_norm", partial, shape), finite("rms_norm", "weight_offset", weight_offset)
    axis, eps = _last(shape), _eps("rms_norm", eps, x)
    if bias is None and count is None and offset == 0.0 and not outside:
        return apply(table.rms_norm, x, weight, axis=axis, eps=eps)
    variant = {"outside": outside, "count": count, "offset": offset}
    return apply(table.rms_norm_variant, x, weight, bias, axis=axis, eps=eps, **variant)


def layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float | None = 1e-5) -> Tensor:
    """y = g ⊙ (x − μ) / √(σ² + ε) + b, mean μ and variance σ² (divided by n) being over the last axes.

    Args:
        x: (..., *normalized_shape).
        normalized_shape: the size of the last axis, or the sizes of the last axes.
        weight, bias: g and b, of shape normalized_shape, or None for 1 and 0.
        eps: ε ≥ 0; None stands for the machine epsilon of x's dtype. With 0, a row of equal numbers gives 0 (and then
            the bias), and its gradient counts as 0.

    Returns:
        of x's shape. float16 is computed in float32 and rounded at the end. Numbers whose squares overflow or underflow
        are scaled first.

    Raises:
        ShapeError: when x does not end in normalized_shape, or weight or bias has another shape.
        ArgumentError: for a negative eps.

    Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).

    >>> import tinynorm as tn
    >>> tn.functional.layer_norm([3.0, 4.0], 2, eps=0.0)
    Tensor([-1.,  1.], dtype=float32)
    """
    x = _floats("layer_norm", "x", x)
    weight, bias = _optional("layer_norm", "weight", weight, x), _optional("layer_norm", "bias", bias, x)
    shape = sizes("layer_norm", (normalized_shape,))
    checks.normalized("layer_norm", x, shape, weight, bias)
    return apply(table.layer_norm, x, weight, bias, axis=_last(shape), eps=_eps("layer_norm", eps, x))


def relu(x: Any) -> Tensor:
    """max(x, 0). The gradient at 0 is 0.

    >>> import tinynorm as tn
    >>> tn.functional.relu([-1.0, 2.0])
    Tensor([0., 2.], dtype=float32)
    """
    return _activate(table.relu, x)


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Tensor:
    """x above 0, negative_slope · x elsewhere.

    >>> import tinynorm as tn
    >>> tn.functional.leaky_relu([-1.0, 2.0], 0.5)
    Tensor([-0.5,  2. ], dtype=float32)
    """
    return _activate(table.leaky_relu, x, negative_slope=finite("leaky_relu", "negative_slope", negative_slope))


def elu(x: Any, alpha: float = 1.0) -> Tensor:
    """x above 0, α (eˣ − 1) elsewhere.

    >>> import tinynorm as tn
    >>> tn.functional.elu([-1000.0, 2.0])
    Tensor([-1.,  2.], dtype=float32)
    """
    return _activate(table.elu, x, alpha=finite("elu", "alpha", alpha))


def gelu(x: Any, approximate: str = "none") -> Tensor:
    """x Φ(x), Φ the standard normal distribution function; or its approximation by tanh.

    Args:
        x: of any shape.
        approximate: "none", or "tanh" for x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).

    >>> import tinynorm as tn
    >>> tn.functional.gelu([-1.0, 1.0]).numpy().round(4)
    array([-0.1587,  0.8413], dtype=float32)
    """
    choice("gelu", "approximate", approximate, GELUS)
    return _activate(table.gelu if approximate == "none" else table.gelu_tanh, x)


def silu(x: Any) -> Tensor:
    """x σ(x), also called swish.

    >>> import tinynorm as tn
    >>> tn.functional.silu([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.7311], dtype=float32)
    """
    return _activate(table.silu, x)


def sigmoid(x: Any) -> Tensor:
    """σ(x) = 1 / (1 + e^(−x)), without overflow.

    >>> import tinynorm as tn
    >>> tn.functional.sigmoid([0.0, 1000.0])
    Tensor([0.5, 1. ], dtype=float32)
    """
    return _activate(table.sigmoid, x)


def softplus(x: Any) -> Tensor:
    """log(1 + eˣ), without overflow.

    >>> import tinynorm as tn
    >>> tn.functional.softplus([0.0, 1000.0]).numpy().round(4)
    array([6.931e-01, 1.000e+03], dtype=float32)
    """
    return _activate(table.softplus, x)


def softmax(x: Any, axis: int = -1) -> Tensor:
    """eˣ / Σ eˣ along an axis, without overflow.

    >>> import tinynorm as tn
    >>> tn.functional.softmax([1000.0, 1000.0])
    Tensor([0.5, 0.5], dtype=float32)
    """
    return _activate(table.softmax, x, axis=axis)


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """log(eˣ / Σ eˣ) along an axis, without overflow.

    >>> import tinynorm as tn
    >>> tn.functional.log_softmax([1000.0, 1000.0]).numpy().round(4)
    array([-0.6931, -0.6931], dtype=float32)
    """
    return _activate(table.log_softmax, x, axis=axis)


def dropout(x: Any, p: float = 0.5, training: bool = True, rng: Rng = None) -> Tensor:
    """Each element set to 0 with probability p, the others divided by 1 − p; x itself when not training.

    Args:
        x: of any shape.
        p: from 0 to 1.
        training: whether to drop at all.
        rng: a generator or seed; by default the one that `tn.manual_seed` sets.

    >>> import tinynorm as tn
    >>> tn.functional.dropout(tn.tensor([1.0, 2.0, 3.0, 4.0]), p=0.5, rng=0)
    Tensor([2., 0., 0., 0.], dtype=float32)
    """
    source = _floats("dropout", "x", x)
    p = fraction("dropout", "p", p)
    if not training or p == 0:
        return source
    kept = generator(rng).random(source.shape) >= p  # drawn on the host, the same for every device
    return apply(table.dropout, source, fresh(backend.to_device(kept, source.device)), p=p)


def cross_entropy(
    logits: Any,
    target: Any,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """−log softmax(logits)[target], row by row, then the mean or sum over rows.

    Args:
        logits: (C,), (N, C) or (N, C, ...), C being the number of classes.
        target: class indices from 0 to C − 1, integers, of the logits' shape without C.
        weight: (C,), one factor per class. The mean then divides by the sum of the targets' weights.
        reduction: "mean", "sum" or "none" (one value per row).
        ignore_index: rows with this target count for nothing, neither in the sum nor in the mean's divisor.
        label_smoothing: s from 0 to 1: the target is (1 − s) · one-hot + s / C.

    Raises:
        OutOfRangeError: for a class that does not exist.
        DTypeError: for a target that is not of integers.
        ArgumentError: for a negative weight, and for the mean over no rows.

    On a device nothing is looked at, since each look would wait for a copy to the host. There a class that does not
    exist and a negative weight make the loss of their rows nan, and so is the mean over no rows.

    >>> import tinynorm as tn
    >>> round(tn.functional.cross_entropy([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [0, 2]).item(), 4)
    0.825
    """
    smoothing = fraction("cross_entropy", "label_smoothing", label_smoothing)
    return _class_loss(table.cross_entropy, "logits", logits, target, weight, reduction, ignore_index, smoothing)


def nll_loss(log_p: Any, target: Any, weight: Any = None, reduction: str = "mean", ignore_index: int = -100) -> Tensor:
    """−log_p[target], row by row, then the mean or sum over rows: `cross_entropy` for what is log-softmax already.

    The arguments are those of `cross_entropy`.

    >>> import tinynorm as tn
    >>> tn.functional.nll_loss([[-0.5, -1.0], [-2.0, -0.1]], [0, 1])
    Tensor(0.3, dtype=float32)
    """
    return _class_loss(table.nll_loss, "log_p", log_p, target, weight, reduction, ignore_index, 0.0)


def mse_loss(x: Any, target: Any, reduction: str = "mean") -> Tensor:
    """(x − target)², then the mean or sum over all elements.

    Args:
        x, target: of equal shapes.
        reduction: "mean", "sum" or "none".

    >>> import tinynorm as tn
    >>> tn.functional.mse_loss([1.0, 2.0], [1.0, 4.0])
    Tensor(2., dtype=float32)
    """
    x = _floats("mse_loss", "x", x)
    target = _weak("mse_loss", target, x)
    target = target if target.dtype.kind == "f" else target.astype(x.dtype)
    checks.same_shape("mse_loss", x=x, target=target)
    choice("mse_loss", "reduction", reduction, REDUCTIONS)
    if reduction == "mean":
        checks.nonempty_reduction("mse_loss", x, axis=None)
    divisors = {"none": None, "sum": 1.0, "mean": float(x.size)}
    return apply(table.mse_loss, x, target, divisor=divisors[reduction])


def _class_loss(
    op: Op,
    argument: str,
    scores: Any,
    target: Any,
    weight: Any,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """A loss on class indices. `argument` is what the scores are called in errors."""
    name = op.name
    scores, target = _floats(name, argument, scores), operand(name, target)
    weight = None if weight is None else _weak(name, weight, scores)
    ignored = integer(name, "ignore_index", ignore_index)
    choice(name, "reduction", reduction, REDUCTIONS)
    checks.constant(name, weight=weight)
    w = None if weight is None else weight._data
    xp = backend.common_namespace(name, (scores._data, target._data, w), (argument, "target", "weight").__getitem__)
    checks.class_targets(name, argument, scores, target._data, w)
    if scores.ndim > 2:  # (N, C, ...) to (N, ..., C)
        scores = scores.transpose(0, *range(2, scores.ndim), 1)
    if xp is np:
        checks.class_numbers(name, scores.shape[-1], target._data, w, ignored)
    dtype = np.promote_types(scores.dtype, np.float32)  # the target need not be rounded to float16
    with backend.on_device_of(scores._data, name):
        per_class = xp.ones(scores.shape[-1], dtype) if w is None else w.astype(dtype)
        kept = target._data != ignored
        if xp is np:
            kept = None if kept.all() else kept
        elif w is not None:
            per_class = xp.where(per_class >= 0, per_class, np.nan)
        # The indices are copied: the backward needs them as they are now.
        targets = Targets(xp.arange(per_class.size), target._data.astype(np.int64), per_class, kept, label_smoothing)
        divisor = _divisor(name, xp, reduction, targets, w is not None)
    return apply(op, scores, target=targets, divisor=divisor)


def _divisor(name: str, xp: Any, reduction: str, targets: Targets, weighted: bool) -> Any:
    """What the sum over rows is divided by, None where there is no sum. On a device a mean's stays there, unseen."""
    if reduction != "mean":
        return None if reduction == "none" else 1.0
    if weighted:
        total = targets.total_weight(xp)
        if xp is not np:
            total = xp.where(total > 0, total, np.nan)  # what smoothing adds, over 0, would be infinite
    elif targets.kept is None:
        total = targets.index.size
    else:
        total = xp.sum(targets.kept, dtype=float)
    if xp is not np:
        return total.astype(targets.weight.dtype)
    checks.positive_weight(name, float(total))
    return float(total)


def _activate(op: Op, x: Any, **params: Any) -> Tensor:
    return apply(op, _floats(op.name, "x", x), **params)


def _floats(name: str, argument: str, value: Any, beside: Tensor | None = None) -> Tensor:
    """The operand, which must be of floats."""
    made = value if isinstance(value, Tensor) else _weak(name, value, beside)
    if made._data.dtype.kind != "f":
        checks.floating(name, **{argument: made})
    return made


def _optional(name: str, argument: str, value: Any, beside: Tensor) -> Tensor | None:
    return None if value is None else _floats(name, argument, value, beside)


def _weak(name: str, value: Any, beside: Tensor | None) -> Tensor:
    """The operand. Python's numbers and lists, integers too, take the dtype of the floats beside them, or float32."""
    if isinstance(value, np.generic) or not isinstance(value, (int, float, list, tuple)):
        return operand(name, value)
    return operand(name, value, beside.dtype if beside is not None and beside.dtype.kind == "f" else np.float32)


def _last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The last axes, as many as the shape has."""
    return (-1,) if len(shape) == 1 else tuple(range(-len(shape), 0))


def _eps(name: str, eps: float | None, x: Tensor) -> float:
    """A Python float, which widens no dtype; for None the machine epsilon of x's dtype."""
    if eps is None:
        return float(np.finfo(x.dtype).eps)
    return nonnegative(name, "eps", eps)
