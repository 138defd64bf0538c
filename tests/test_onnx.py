"""The ONNX standard's own node cases: inputs, attributes and the outputs that any implementation must give.

The `onnx` package makes them in memory. Each operator of the standard with a counterpart here has an adapter, which
takes the node's inputs and, under their names and with the standard's defaults, its attributes. A case of these
operators is run or is excluded with a reason; there is no third way.
"""

import re
import warnings
from contextlib import nullcontext
from functools import reduce

import numpy as np
import pytest

import tinynorm as tn
from tinynorm import functional as F

onnx = pytest.importorskip("onnx", "1.23", reason="its cases need onnx 1.23: pip install -e '.[conformance]'")


# Adapters: inputs that are left out are None, and the outputs are as many as the operator can give


def last_axes(x, axis):
    """The standard normalizes from an axis to the last one."""
    return x.shape[axis % x.ndim :]


def layer_normalization(x, scale, bias=None, *, axis=-1, epsilon=1e-5):
    shape = last_axes(x, axis)
    axes = tuple(range(-len(shape), 0))
    deviation = tn.sqrt(tn.var(x, axes, keepdims=True) + epsilon)
    return F.layer_norm(x, shape, scale, bias, epsilon), tn.mean(x, axes, keepdims=True), 1.0 / deviation


def group_normalization(x, scale, bias, *, num_groups, epsilon=1e-5):
    """A LayerNorm without affine part over each group of channels, then one gain and bias a channel."""
    groups = x.reshape(x.shape[0], num_groups, -1)
    h = F.layer_norm(groups, groups.shape[-1], eps=epsilon).reshape(x.shape)
    channels = (-1,) + (1,) * (x.ndim - 2)
    return h * scale.reshape(channels) + bias.reshape(channels)


def mean_variance_normalization(x, *, axes=(0, 2, 3)):
    return (x - tn.mean(x, tuple(axes), keepdims=True)) / tn.sqrt(tn.var(x, tuple(axes), keepdims=True))


def gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    """Linear's weight is (out, in): the transposed b."""
    y = alpha * F.linear(a.T if transA else a, b if transB else b.T)
    return y if c is None else y + beta * c


def softmax_cross_entropy(scores, target, weight=None, *, reduction="mean", ignore_index=-100):
    return F.cross_entropy(scores, target, weight, reduction, ignore_index), F.log_softmax(scores, axis=1)


def negative_log_likelihood(log_p, target, weight=None, *, reduction="mean", ignore_index=-100):
    return F.nll_loss(log_p, target, weight, reduction, ignore_index)


def over_axes(function):
    """Reductions take their axes as an input; none given are all, unless `noop_with_empty_axes`."""

    def call(x, axes=None, *, keepdims=1, noop_with_empty_axes=0):
        given = () if axes is None else tuple(axes.numpy().tolist())
        return function(x, axis=given if given or noop_with_empty_axes else None, keepdims=bool(keepdims))

    return call


def cumsum(x, axis, *, exclusive=0, reverse=0):
    """Running from the other end, or without the element itself; integers keep their dtype."""
    order = (slice(None),) * (int(axis) % x.ndim) + (slice(None, None, -1 if reverse else 1),)
    y = tn.cumsum(x[order], int(axis))[order].astype(x.dtype)
    return y - x if exclusive else y


def reshape(x, shape, *, allowzero=0):
    """A 0 in the shape keeps that axis as it is, unless `allowzero`."""
    sizes = shape.numpy().tolist()
    return tn.reshape(x, sizes if allowzero else [n or x.shape[i] for i, n in enumerate(sizes)])


def expand(x, shape):
    """Both ways: axes of length 1 in the shape take x's."""
    return tn.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.numpy())))


def swish(x, *, alpha=1.0):
    return F.silu(alpha * x) / alpha


ADAPTERS = {
    "LayerNormalization": layer_normalization,
    "RMSNormalization": lambda x, scale, *, axis=-1, epsilon=1e-5: F.rms_norm(x, last_axes(x, axis), scale, epsilon),
    "GroupNormalization": group_normalization,
    "InstanceNormalization": lambda x, scale, bias, **options: group_normalization(
        x, scale, bias, num_groups=x.shape[1], **options
    ),
    "MeanVarianceNormalization": mean_variance_normalization,
    "Gemm": gemm,
    "MatMul": tn.matmul,
    "Einsum": lambda *operands, equation: tn.einsum(equation, *operands),
    "Softmax": lambda x, *, axis=-1: F.softmax(x, axis),
    "LogSoftmax": lambda x, *, axis=-1: F.log_softmax(x, axis),
    "SoftmaxCrossEntropyLoss": softmax_cross_entropy,
    "NegativeLogLikelihoodLoss": negative_log_likelihood,
    # activations
    "Relu": F.relu,
    "LeakyRelu": lambda x, *, alpha=0.01: F.leaky_relu(x, alpha),
    "Elu": lambda x, *, alpha=1.0: F.elu(x, alpha),
    "Sigmoid": F.sigmoid,
    "Softplus": F.softplus,
    "Tanh": tn.tanh,
    "Gelu": lambda x, *, approximate="none": F.gelu(x, approximate),
    "Swish": swish,
    "SwiGLU": lambda a, b, *, alpha=1.0: swish(a, alpha=alpha) * b,
    "Mish": lambda x: x * tn.tanh(F.softplus(x)),
    "Softsign": lambda x: x / (1.0 + abs(x)),
    # element by element
    "Erf": tn.erf,
    "Exp": tn.exp,
    "Log": tn.log,
    "Sqrt": tn.sqrt,
    "Sin": tn.sin,
    "Cos": tn.cos,
    "Abs": tn.abs,
    "Neg": lambda x: -x,
    "Reciprocal": lambda x: 1.0 / x,
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
    "Pow": lambda a, b: (a**b).astype(a.dtype),  # by the standard of the base's dtype, here of the wider of both
    "Max": lambda *operands: reduce(tn.maximum, operands),
    "Min": lambda *operands: reduce(tn.minimum, operands),
    "Sum": lambda *operands: sum(operands),
    "Mean": lambda *operands: sum(operands) / float(len(operands)),
    "Clip": tn.clip,
    "Where": tn.where,
    "Equal": lambda a, b: a == b,
    "Less": lambda a, b: a < b,
    "LessOrEqual": lambda a, b: a <= b,
    "Greater": lambda a, b: a > b,
    "GreaterOrEqual": lambda a, b: a >= b,
    "And": lambda a, b: a & b,
    "Or": lambda a, b: a | b,
    "Not": lambda x: ~x,
    # reductions
    "ReduceSum": over_axes(tn.sum),
    "ReduceMean": over_axes(tn.mean),
    "ReduceMax": over_axes(tn.max),
    "ReduceMin": over_axes(tn.min),
    "ReduceProd": over_axes(tn.prod),
    "ReduceLogSumExp": over_axes(tn.logsumexp),
    "ReduceLogSum": over_axes(lambda x, **options: tn.log(tn.sum(x, **options))),
    "ReduceSumSquare": over_axes(lambda x, **options: tn.sum(x * x, **options)),
    "ReduceL1": over_axes(lambda x, **options: tn.sum(abs(x), **options)),
    "ReduceL2": over_axes(lambda x, **options: tn.sqrt(tn.sum(x * x, **options))),
    "CumSum": cumsum,
    # shapes and parts
    "Reshape": reshape,
    "Transpose": lambda x, *, perm=None: tn.transpose(x, None if perm is None else tuple(perm)),
    "Concat": lambda *operands, axis: tn.concatenate(operands, axis),
    "Expand": expand,
    "Gather": lambda x, indices, *, axis=0: tn.take(x, indices, axis),
}

# Of the standard's normalizations, BatchNormalization, LpNormalization and LRN have no counterpart here.

EXCLUDED = {
    r"test_div_(u?int\d+|int32_trunc)": "an integer divided by an integer is truncated there, and here, as in NumPy, "
    "a float",
    r"test_einsum_\w+_bfloat16": "NumPy has no bfloat16",
    r"test_equal_string(_broadcast)?": "tensors hold numbers",
    r"test_reduce_(max|min|log_sum_exp)_empty_set(_bool)?": "the largest of nothing is refused here, as NumPy does it, "
    "and not −∞ or False",
}
"""Cases that are not run, as patterns of their names, and why."""

WARNINGS = {"test_reduce_log_sum_empty_set": "divide by zero encountered in log"}
"""Cases of which NumPy rightly warns: the logarithm of 0 is −∞."""


# The cases


def collected():
    """The cases of the operators above by name, without those that the standard derives from them: graphs of simpler
    operators with the same numbers, which are for whoever runs graphs."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        # A few cases of other operators, when they are made, overflow or divide by 0.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"onnx\.backend\.test\.case\.node")
        cases = collect_testcases(None)
    plain = [case for case in cases if "_expanded" not in case.name and len(case.model.graph.node) == 1]
    return {case.name: case for case in plain if case.model.graph.node[0].op_type in ADAPTERS}


CASES = collected()
RUN = [name for name in CASES if not any(re.fullmatch(pattern, name) for pattern in EXCLUDED)]


def operator(name):
    return CASES[name].model.graph.node[0].op_type


def test_the_standard_is_there():
    """An empty collection would pass."""
    assert len(RUN) >= 400
    assert {operator(name) for name in RUN} == set(ADAPTERS)


@pytest.mark.parametrize("pattern", EXCLUDED)
def test_what_is_excluded_exists(pattern):
    assert any(re.fullmatch(pattern, name) for name in CASES)


def decoded(value):
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("name", RUN)
def test_case(name):
    case = CASES[name]
    (node,) = case.model.graph.node
    attributes = {a.name: decoded(onnx.helper.get_attribute_value(a)) for a in node.attribute}
    assert case.data_sets
    for given, expected in case.data_sets:
        rest = iter(given)
        inputs = [tn.as_tensor(next(rest)) if label else None for label in node.input]
        with pytest.warns(RuntimeWarning, match=WARNINGS[name]) if name in WARNINGS else nullcontext():
            found = ADAPTERS[node.op_type](*inputs, **attributes)
        outputs = found if isinstance(found, tuple) else (found,)
        assert 1 <= len(expected) <= len(outputs)
        for y, right in zip(outputs, expected, strict=False):
            assert (y.shape, y.dtype) == (right.shape, right.dtype)
            np.testing.assert_allclose(y.numpy(), right, rtol=case.rtol, atol=case.atol)
