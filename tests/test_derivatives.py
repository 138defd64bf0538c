"""Derivatives of any order, and what must happen instead of a wrong number.

The reference for the orders 1 to 4 knows no backward formula: φ(t) = f(x + t v), evaluated by the forwards alone at
points t on a circle in the complex plane, has the Taylor coefficients that a Fourier transform finds (Cauchy's
integral), each to about 1e-16 / rᵏ.
"""

import copy
import gc
import math
import pickle
import threading
import weakref
from functools import partial

import mpmath
import numpy as np
import pytest

import tinynorm as tn
from tinynorm import functional as F
from tinynorm import graph, recorded
from tinynorm.testing.cases import CASES

GraphError, ShapeError, DTypeError = tn.errors.GraphError, tn.errors.ShapeError, tn.errors.DTypeError


@pytest.fixture
def rng():
    return np.random.default_rng(20240601)


def leaf(array):
    return tn.tensor(array, requires_grad=True)


def taylor(y, xs, vs, radius=0.015, points=16):
    """dᵏ/dtᵏ y(x + t v) at t = 0 for k = 1 to 4."""
    ts = radius * np.exp(2j * np.pi * np.arange(points // 2 + 1) / points)  # below the real axis all is conjugate
    steps = [{x._source: x.numpy() + t * v for x, v in zip(xs, vs, strict=True)} for t in ts]
    values = [complex(graph.replay(y._source, step)) for step in steps]
    coefficients = np.fft.hfft(values, points) / points
    return [math.factorial(k) * coefficients[k] / radius**k for k in (1, 2, 3, 4)]


def directional(y, xs, vs):
    """Σ v · ∂y/∂x, which can be differentiated again."""
    gradients = tn.grad(y, xs, create_graph=True)
    return sum((g * v).sum() for g, v in zip(gradients, vs, strict=True))


def directional_orders(y, xs, vs, orders=4):
    found = []
    for _ in range(orders):
        y = directional(y, xs, vs)
        found.append(y)
    return found


def complex_gradient(y, x):
    """∂y/∂x element by element, by a complex step through y's graph."""
    gradient = np.empty(x.shape)
    for i in np.ndindex(x.shape):
        stepped = x.numpy().astype(np.complex128)
        stepped[i] += 1e-30j
        gradient[i] = np.imag(graph.replay(y._source, {x._source: stepped})) / 1e-30
    return gradient


def richardson(f, h=0.02):
    """f′(0) by central differences at h, h/2 and h/4, extrapolated twice: off by h⁶ and by 1e-14 / h."""
    d = [(f(s) - f(-s)) / (2 * s) for s in (h, h / 2, h / 4)]
    once = [(4 * d[1] - d[0]) / 3, (4 * d[2] - d[1]) / 3]
    return (16 * once[1] - once[0]) / 15


# Orders 1 to 4 of every operation


def recorded_call(case, setting, seed):
    """Σ c · y of one call, where c is a variable, too; all variables; and a direction of length about 1 for each."""
    rng = np.random.default_rng([seed, 7])
    tensors = [tn.tensor(a, requires_grad=a.dtype.kind == "f") for a in case.inputs(rng, setting)]
    y = case.call(*tensors, **setting.options)
    c = leaf(rng.normal(size=y.shape).astype(y.dtype))
    xs = [*(t for t in tensors if t.requires_grad), c]
    scale = 1 / math.sqrt(max(1, sum(x.size for x in xs)))
    return (y * c).sum(), xs, [np.asarray(scale * rng.normal(size=x.shape)) for x in xs]


def check_orders(y, xs, vs):
    found = [t.item() for t in directional_orders(y, xs, vs)]
    for k, (value, expected) in enumerate(zip(found, taylor(y, xs, vs), strict=True), start=1):
        tolerance = 10.0 ** (2 * k - 14)
        assert abs(value - expected) <= tolerance * (1 + abs(expected)), f"order {k}"


@pytest.mark.parametrize("name", CASES)
def test_orders_1_to_4_of_every_operation(name):
    """In the settings of the table, or some of them; mixed derivatives among inputs and cotangent included."""
    settings = CASES[name].always[::-1]  # the typical one first
    for setting in settings[:: 1 + len(settings) // 16]:
        check_orders(*recorded_call(CASES[name], setting, seed=0))


LAYERS = {
    "rms_norm": (lambda x, g: F.rms_norm(x, 3, g), (2, 3), (3,)),
    "layer_norm": (lambda x, g, b: F.layer_norm(x, 3, g, b), (2, 3), (3,), (3,)),
    "linear": (F.linear, (2, 3), (4, 3), (4,)),
    "softmax": (F.softmax, (2, 3)),
    "log_softmax": (F.log_softmax, (2, 3)),
    "cross_entropy": (lambda z: F.cross_entropy(z, [2, 0], label_smoothing=0.1), (2, 3)),
    "logsumexp": (lambda x: tn.logsumexp(x, axis=1), (2, 3)),
    "matmul": (tn.matmul, (2, 3), (3, 2)),
    "power": (lambda x, p: (x * x + 0.5) ** p, (3,), (3,)),
    "norm, linear, gelu": (lambda x, w: F.gelu(F.linear(F.rms_norm(x, 3), w)), (2, 3), (2, 3)),
    "attention": (lambda q, k, v: F.softmax(q @ k.T / 3**0.5) @ v, (2, 3), (4, 3), (4, 2)),
    **{name: (getattr(F, name), (3,)) for name in ("gelu", "silu", "sigmoid", "softplus", "elu", "leaky_relu", "relu")},
    "gelu_tanh": (partial(F.gelu, approximate="tanh"), (3,)),
    "tanh": (tn.tanh, (3,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_each_order_is_the_slope_of_the_order_below(name, rng):
    """By differences of what the library itself gives for the order below, and every element by a complex step."""
    function, *shapes = LAYERS[name]
    arrays = [rng.uniform(0.3, 1.5, s) * rng.choice([-1.0, 1.0], s) for s in shapes]  # no kink within a step
    us, vs = ([0.5 * rng.normal(size=s) for s in shapes] for _ in range(2))
    c = rng.normal(size=function(*arrays).shape)

    def order_below(order, t):
        xs = [leaf(a + t * u) for a, u in zip(arrays, us, strict=True)]
        y = (function(*xs) * c).sum()
        return (directional_orders(y, xs, vs, order - 1) or [y])[-1], xs

    for order in (1, 2, 3, 4):
        below, xs = order_below(order, 0.0)
        gradients = tn.grad(below, xs, create_graph=order % 2 == 0)
        numeric = richardson(lambda t, order=order: order_below(order, t)[0].item())
        found = sum(np.sum(g.numpy() * u) for g, u in zip(gradients, us, strict=True))
        assert abs(found - numeric) <= 1e-7 * (1 + abs(numeric)), f"order {order}"
        for x, g in zip(xs, gradients, strict=True):
            np.testing.assert_allclose(g.numpy(), complex_gradient(below, x), rtol=1e-9, atol=1e-10)


STEPS = [
    tn.sin, tn.tanh, F.gelu, F.softplus, F.softmax, F.log_softmax, tn.erf, tn.cumsum,
    lambda x: tn.exp(0.3 * x), lambda x: 1.0 / (x * x + 1.0), lambda x: x / tn.sqrt(tn.var(x) + 1.0),
    lambda x: F.rms_norm(x, x.shape[-1]), lambda x: F.layer_norm(x, x.shape[-1]), lambda x: x[..., ::-1],
    lambda x: x[[0, 0, -1]], lambda x: x - x.mean(axis=0, keepdims=True), lambda x: tn.logsumexp(x, 0, True) + x,
]  # fmt: skip
PAIRS = [lambda a, b: a + b, lambda a, b: a * b, lambda a, b: tn.concatenate([b, a])[:3], lambda a, b: a @ b.T]


@pytest.mark.parametrize("seed", range(20))
def test_orders_1_to_4_of_random_graphs(seed):
    """Results that are used more than once, and not at all."""
    rng = np.random.default_rng([seed, 3])
    x, w = leaf(rng.normal(size=(3, 3))), leaf(rng.normal(size=(3, 3)))
    pool = [x, w]
    for _ in range(6):
        a, b = (pool[rng.integers(len(pool))].reshape(-1, 3) for _ in range(2))
        pool.append(STEPS[rng.integers(len(STEPS))](a) if rng.random() < 0.6 else PAIRS[rng.integers(len(PAIRS))](a, b))
    y = sum((h * rng.normal(size=h.shape)).sum() for h in pool[-2:]) + (pool[2] ** 2).mean()
    check_orders(y, [x, w], [0.2 * rng.normal(size=(3, 3)) for _ in range(2)])


def elementwise_orders(function, x, orders=4):
    """f′(x), f″(x), … of a function of single elements."""
    y, found = function(x), []
    for _ in range(orders):
        (y,) = tn.grad(y.sum(), x, create_graph=True)
        found.append(y.numpy().copy())
    return found


def normal_cdf(x):
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


SMOOTH = {  # each with its definition, and points
    "exp": (tn.exp, mpmath.exp, [-3.0, 0.0, 2.5]),
    "expm1": (tn.expm1, mpmath.expm1, [-3.0, 0.0, 2.5]),
    "log": (tn.log, mpmath.log, [0.25, 1.0, 30.0]),
    "log1p": (tn.log1p, mpmath.log1p, [-0.5, 0.0, 30.0]),
    "sqrt": (tn.sqrt, mpmath.sqrt, [0.25, 1.0, 30.0]),
    "tanh": (tn.tanh, mpmath.tanh, [-2.0, 0.0, 0.7]),
    "sin": (tn.sin, mpmath.sin, [-2.0, 0.0, 0.7]),
    "cos": (tn.cos, mpmath.cos, [-2.0, 0.0, 0.7]),
    "erf": (tn.erf, mpmath.erf, [-3.0, -0.5, 0.0, 0.5, 1.7]),
    "sigmoid": (F.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), [-9.0, -0.3, 0.0, 4.0]),
    "silu": (F.silu, lambda x: x / (1 + mpmath.exp(-x)), [-9.0, -0.3, 0.0, 4.0]),
    "softplus": (F.softplus, lambda x: mpmath.log(1 + mpmath.exp(x)), [-9.0, -0.3, 0.0, 4.0]),
    "gelu": (F.gelu, lambda x: x * normal_cdf(x), [-6.0, -2.0, -0.3, 0.0, 0.8, 5.0]),
    "gelu_tanh": (
        partial(F.gelu, approximate="tanh"),
        lambda x: x / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3))),
        [-3.0, -0.3, 0.0, 0.8, 2.0],
    ),
    "elu": (F.elu, lambda x: x if x > 0 else mpmath.expm1(x), [-3.0, -0.4, 0.7]),
    "leaky_relu": (partial(F.leaky_relu, negative_slope=0.25), lambda x: x if x > 0 else x / 4, [-3.0, 0.7]),
    "relu": (F.relu, lambda x: max(x, mpmath.mpf(0)), [-3.0, 0.7]),
    "abs": (tn.abs, abs, [-3.0, 0.7]),
    "xᵖ": (lambda x: x**2.5, lambda x: x ** mpmath.mpf(2.5), [0.3, 4.0]),
    "1/x": (lambda x: 1 / x, lambda x: 1 / x, [-0.3, 4.0]),
    "2ˣ": (lambda x: 2.0**x, lambda x: mpmath.mpf(2) ** x, [-0.3, 4.0]),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_orders_1_to_4_to_all_digits(name):
    """Against mpmath's derivatives, at 40 digits, of the definitions."""
    function, definition, points = SMOOTH[name]
    found = elementwise_orders(function, leaf(np.array(points)))
    with mpmath.workdps(40):
        for order, values in enumerate(found, start=1):
            expected = [float(mpmath.diff(definition, mpmath.mpf(p), order)) for p in points]
            np.testing.assert_allclose(values, expected, rtol=4e-13, atol=1e-14, err_msg=f"order {order}")


def test_polynomials_come_to_an_end(rng):
    x = leaf(rng.normal(size=4))
    found = elementwise_orders(lambda x: x**5 - 2.0 * x**3, x, orders=8)
    v = x.numpy()
    expected = [5 * v**4 - 6 * v**2, 20 * v**3 - 12 * v, 60 * v**2 - 12, 120 * v, 120 + 0 * v, *[0 * v] * 3]
    for values, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, right, rtol=1e-12, atol=1e-12)


def test_high_orders_of_sin_and_exp_and_the_reciprocal():
    x = leaf(np.array([0.3, -1.1]))
    for k, values in enumerate(elementwise_orders(tn.sin, x, 8), start=1):
        np.testing.assert_allclose(values, np.sin(x.numpy() + k * np.pi / 2), rtol=1e-12)
    for values in elementwise_orders(tn.exp, x, 8):
        np.testing.assert_allclose(values, np.exp(x.numpy()), rtol=1e-14)
    for k, values in enumerate(elementwise_orders(lambda x: 1.0 / x, x, 6), start=1):
        np.testing.assert_allclose(values, (-1) ** k * math.factorial(k) / x.numpy() ** (k + 1), rtol=1e-12)


# Matrices of derivatives


def gradient_of(function, x, **options):
    """∇f as a Tensor that can be differentiated."""
    return tn.grad(function(x), x, create_graph=True, **options)[0]


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax", "log_softmax", "cross_entropy", "logsumexp"])
def test_hessians_are_symmetric_and_what_a_complex_step_gives(name, rng):
    function, shape, *others = LAYERS[name]
    fixed = [rng.normal(size=s) for s in others]
    c = rng.normal(size=function(np.zeros(shape), *fixed).shape)

    def scalar(x):
        return (function(x, *fixed) * c).sum()

    point = rng.normal(size=shape)
    n = point.size
    hessian = tn.jacobian(partial(gradient_of, scalar), point).numpy().reshape(n, n)
    np.testing.assert_allclose(hessian, hessian.T, rtol=1e-12, atol=1e-12)
    x = leaf(point)
    g = gradient_of(scalar, x)
    numeric = [complex_gradient(g.reshape(-1)[i], x).reshape(-1) for i in range(n)]
    np.testing.assert_allclose(hessian, numeric, rtol=1e-11, atol=1e-13)
    v = rng.normal(size=shape)
    value, product = tn.hvp(scalar, point, v)
    np.testing.assert_allclose(value.item(), scalar(point).item())
    np.testing.assert_allclose(product.numpy().reshape(-1), hessian @ v.reshape(-1), rtol=1e-11, atol=1e-12)


def test_hessians_where_elements_tie():
    """The largest of equals is no kink of log Σ eˣ: its Hessian is diag(p) − p pᵀ everywhere."""
    for x in ([1.0, 1.0], [2.0, 2.0, 2.0], [1.0, 1.0, 0.0], [0.0, 3.0, 3.0]):
        p = np.exp(x) / np.sum(np.exp(x))
        hessian = tn.jacobian(partial(gradient_of, tn.logsumexp), np.array(x))
        np.testing.assert_allclose(hessian.numpy(), np.diag(p) - np.outer(p, p), atol=1e-14)
        rows = tn.jacobian(F.softmax, np.array(x))
        np.testing.assert_allclose(rows.numpy(), np.diag(p) - np.outer(p, p), atol=1e-14)


def test_mixed_derivatives_of_inputs_and_cotangent(rng):
    """y = x Wᵀ: ∂²(c·y)/∂x∂W by hand, and with respect to c."""
    x, w, c = (leaf(rng.normal(size=s)) for s in [(2, 3), (4, 3), (2, 4)])
    u, v, e = (rng.normal(size=t.shape) for t in (x, w, c))
    gx, gw = tn.grad(F.linear(x, w), [x, w], c, create_graph=True)
    found = tn.grad([gx, gw], [x, w, c], [u, v])
    cx, cw, cc = c.numpy() @ v, c.numpy().T @ u, u @ w.numpy().T + x.numpy() @ v.T
    for g, expected in zip(found, (cx, cw, cc), strict=True):
        np.testing.assert_allclose(g.numpy(), expected, rtol=1e-13)
    # the same by a step of c: the gradients are linear in it
    stepped = tn.grad(F.linear(x, w), [x, w], c.numpy() + e)
    slope = sum(np.sum(d * (s.numpy() - g.numpy())) for d, s, g in zip((u, v), stepped, (gx, gw), strict=True))
    np.testing.assert_allclose(slope, np.sum(found[2].numpy() * e), rtol=1e-12)


def test_the_order_of_differentiation_does_not_matter(rng):
    x, w = leaf(rng.normal(size=(2, 3))), leaf(rng.normal(size=3))
    y = (F.layer_norm(x, 3, w) ** 2 * rng.normal(size=(2, 3))).sum()
    u, v = rng.normal(size=(2, 3)), rng.normal(size=3)
    gx, gw = tn.grad(y, [x, w], create_graph=True)
    np.testing.assert_allclose(
        np.sum(tn.grad(gx, w, u)[0].numpy() * v), np.sum(tn.grad(gw, x, v)[0].numpy() * u), rtol=1e-12
    )


@pytest.mark.parametrize("name", LAYERS)
def test_jvp_and_vjp_are_adjoint(name, rng):
    """⟨v, J u⟩ = ⟨Jᵀ v, u⟩, and J u is what a circle of forwards gives."""
    function, *shapes = LAYERS[name]
    points = tuple(rng.uniform(0.3, 1.5, s) for s in shapes)
    us = tuple(0.3 * rng.normal(size=s) for s in shapes)
    y, forward = tn.jvp(function, points, us)
    v = rng.normal(size=y.shape)
    same, back = tn.vjp(function, points, v)
    np.testing.assert_array_equal(y.numpy(), same.numpy())
    left = np.sum(v * forward.numpy())
    np.testing.assert_allclose(left, sum(np.sum(b.numpy() * u) for b, u in zip(back, us, strict=True)), rtol=1e-12)
    xs = [leaf(p) for p in points]
    numeric = taylor((function(*xs) * v).sum(), xs, us)[0]
    np.testing.assert_allclose(left, numeric, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3,), (2, 3), (2, 0)])
def test_jacobians_of_any_shape(shape, rng):
    point, w = rng.normal(size=shape), rng.normal(size=shape)

    def function(x):
        return tn.stack([tn.sin(x) * w, x * x]).sum(axis=-1) if shape else tn.stack([tn.sin(x) * w, x * x])

    found = tn.jacobian(function, point)
    out = (2, *shape[:-1])
    assert found.shape == (*out, *shape)
    expected = np.zeros((*out, *shape))
    for i in np.ndindex(shape):  # yₖ depends on the xᵢ in its row
        expected[(0, *i[:-1], *i)], expected[(1, *i[:-1], *i)] = np.cos(point[i]) * w[i], 2 * point[i]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13)


def test_a_jacobian_for_each_of_several_inputs(rng):
    a, b = rng.normal(size=(2, 3)), rng.normal(size=3)
    ja, jb = tn.jacobian(lambda a, b: a @ b, (a, b))
    np.testing.assert_allclose(ja.numpy(), np.einsum("ij,k->ijk", np.eye(2), b), rtol=1e-14)
    np.testing.assert_allclose(jb.numpy(), a, rtol=1e-14)


def test_jacobians_of_jacobians(rng):
    """Three levels: ∂³ Σ x⁴ / ∂x³ is 24 x on the diagonal."""
    x = rng.normal(size=2)
    second = partial(tn.jacobian, partial(gradient_of, lambda x: (x**4).sum()), create_graph=True)
    third = tn.jacobian(second, x).numpy()
    expected = np.zeros((2, 2, 2))
    expected[[0, 1], [0, 1], [0, 1]] = 24 * x
    np.testing.assert_allclose(third, expected, rtol=1e-12, atol=1e-12)


# What `grad` means


def test_the_result_is_a_tuple_of_tensors_and_adds_to_no_gradient(rng):
    x, w = leaf(rng.normal(size=3)), leaf(rng.normal(size=3).astype(np.float32))
    y = tn.exp(x * w).sum()
    for create_graph in (False, True):
        found = tn.grad(y, (x, w), create_graph=create_graph)
        assert type(found) is tuple
        assert [type(g) for g in found] == [tn.Tensor] * 2
        assert [(g.shape, g.dtype) for g in found] == [((3,), np.float64), ((3,), np.float32)]
        assert [g.requires_grad for g in found] == [create_graph] * 2
    assert x.grad is w.grad is None
    assert len(tn.grad(y, x)) == 1
    assert len(tn.grad(y, iter([x, w]))) == 2
    y.backward()  # the graph is still there
    np.testing.assert_array_equal(tn.as_tensor(x.grad).numpy(), tn.grad(tn.exp(x * w).sum(), x)[0].numpy())


@tn.formulas_only()  # a kernel's backward adds in another order than the formula's, which the second walk runs
def test_both_walks_give_the_same(rng):
    x = leaf(rng.normal(size=(3, 4)))
    y = F.cross_entropy(F.layer_norm(tn.tanh(x) @ x.T, 3), [0, 2, 1])
    once, again = tn.grad(y, x)[0], tn.grad(y, x, create_graph=True)[0]
    np.testing.assert_array_equal(once.numpy(), again.detach().numpy())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_where_nothing_but_roundings_is_left_of_a_gradient(name, dtype, rng):
    """As of Σ softmax, which is 1: a kernel's roundings are others than the formula's, which the second walk runs."""
    several = name.endswith("norm")
    function = (lambda x: getattr(F, name)(x, x.shape[-1])) if several else getattr(F, name)
    for shape in ((1, 7), (3, 20), (40, 33)):
        x, v = rng.normal(size=shape).astype(dtype), rng.normal(size=shape).astype(dtype)
        _, found = tn.jvp(function, x, v)  # it pulls ones back first
        tn.hvp(lambda x: function(x).sum(), x, v)
        with tn.formulas_only():
            _, expected = tn.jvp(function, x, v)
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=0, atol=1e-4 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_where_nothing_but_roundings_is_left_of_a_result(dtype, rng):
    """As of a mean of LayerNorm's results: what comes after the kernel must get the same bits in the second walk."""
    x, v = rng.normal(size=(2, 4, 16)).astype(dtype)
    for function in (
        lambda x: (F.layer_norm(x, 16).mean(axis=-1) ** 2).sum(),
        lambda x: ((1 - F.softmax(x).sum(axis=-1)) ** 2).sum(),
        lambda x: F.gelu(F.layer_norm(x, 16).mean(axis=-1)).sum(),
    ):
        _, h = tn.hvp(function, x, v)
        assert abs(h.numpy()).max() < (1e-4 if dtype == np.float32 else 1e-12)


def test_random_numbers_before_a_kernel_are_refused(rng):
    """By what comes of an uneven cotangent as well."""
    source = np.random.default_rng(0)
    hidden = user_op("hidden", lambda xp, x: (x + source.normal(size=x.shape), None), lambda xp, dy, _: dy)
    x = leaf(rng.normal(size=(5, 9)))
    for function in (F.relu, F.softmax, lambda x: F.layer_norm(x, 9)):
        with pytest.raises(GraphError, match="other numbers"):
            tn.grad(function(hidden(x)).sum(), x, create_graph=True)


def test_several_outputs_and_one_named_twice(rng):
    x, u, v = leaf(rng.normal(size=3)), rng.normal(size=3), rng.normal(size=3)
    y, z = x * x, tn.sin(x)
    for create_graph in (False, True):
        (g,) = tn.grad([y, z, y], x, [u, v, v], create_graph=create_graph)
        np.testing.assert_allclose(g.numpy(), 2 * x.numpy() * (u + v) + v * np.cos(x.numpy()), rtol=1e-13)
    np.testing.assert_allclose(tn.grad(g, x, u)[0].numpy(), u * (2 * (u + v) - v * np.sin(x.numpy())), rtol=1e-13)
    (mixed,) = tn.grad([y.sum(), z], x, [None, v])
    np.testing.assert_allclose(mixed.numpy(), 2 * x.numpy() + v * np.cos(x.numpy()), rtol=1e-13)


@pytest.mark.parametrize("create_graph", [False, True])
def test_an_output_that_is_an_input_and_one_named_twice(create_graph, rng):
    x, u = leaf(rng.normal(size=3)), rng.normal(size=3)
    h = x * 2.0
    found = tn.grad([x, h], [h, x, x], [u, u], create_graph=create_graph)
    for g, factor in zip(found, (1, 3, 3), strict=True):
        np.testing.assert_allclose(g.numpy(), factor * u, rtol=1e-14)
    assert not np.shares_memory(found[1].numpy(), found[2].numpy())


@pytest.mark.parametrize("create_graph", [False, True])
def test_inputs_on_the_way(create_graph, rng):
    """A result counts as an input of what was made of it; what lies below gets its total derivative."""
    x = leaf(rng.normal(size=3))
    h = x * x
    y = (tn.exp(h) * x).sum()
    gh, gx = tn.grad(y, [h, x], create_graph=create_graph)
    v = x.numpy()
    np.testing.assert_allclose(gh.numpy(), np.exp(v**2) * v, rtol=1e-13)
    np.testing.assert_allclose(gx.numpy(), np.exp(v**2) * (1 + 2 * v**2), rtol=1e-13)
    if create_graph:
        again, below = tn.grad(gh, [h, x], np.ones(3))
        np.testing.assert_allclose(again.numpy(), np.exp(v**2) * v, rtol=1e-13)
        np.testing.assert_allclose(below.numpy(), np.exp(v**2) * (1 + 2 * v**2), rtol=1e-13)


def test_an_input_that_the_outputs_do_not_depend_on_gets_zeros_again_and_again():
    x, other = leaf(np.ones((2, 3))), leaf(np.ones(4, np.float32))
    for create_graph in (False, True):
        _, g = tn.grad((x * x).sum(), [x, other], create_graph=create_graph)
        np.testing.assert_array_equal(g.numpy(), np.zeros(4, np.float32))
        assert g.dtype == np.float32
    for _ in range(3):
        g, h = tn.grad(g.sum(), [other, x], create_graph=True)
        np.testing.assert_array_equal(g.numpy(), np.zeros(4))
        np.testing.assert_array_equal(h.numpy(), np.zeros((2, 3)))


@pytest.mark.parametrize(
    "function",
    [F.relu, lambda x: 3.0 * x, lambda x: x.sum(), lambda x: tn.abs(x), lambda x: x.max(), lambda x: x[1:],
     lambda x: tn.where(x > 0, x, -2.0 * x), lambda x: x.reshape(3, 1) - 1.0, lambda x: tn.cumsum(x),
     lambda x: tn.clip(x, -1.0, 1.0), lambda x: tn.maximum(x, 0.5), lambda x: x.mean(), lambda x: -x],
)  # fmt: skip
def test_constant_derivatives_can_be_differentiated_to_zeros(function):
    x = leaf(np.array([-1.5, 0.3, 2.0]))
    y = function(x)
    (g,) = tn.grad(y, x, np.linspace(1, 2, y.size).reshape(y.shape), create_graph=True)
    assert np.any(g.numpy())
    for _ in range(2):
        (g,) = tn.grad(g.sum(), x, create_graph=True)
        np.testing.assert_array_equal(g.numpy(), np.zeros(3))
    g.sum().backward()
    assert x.grad is None or not x.grad.any()


def test_results_go_through_backward_into_leaves(rng):
    x = leaf(rng.normal(size=3))
    y = (x**3).sum()
    (g,) = tn.grad(y, x, create_graph=True)
    assert x.grad is None
    (g**2).sum().backward()  # Σ 9 x⁴
    np.testing.assert_allclose(x.grad, 36 * x.numpy() ** 3, rtol=1e-13)
    (tn.grad((x**2).sum(), x, create_graph=True)[0] + x).sum().backward()
    np.testing.assert_allclose(x.grad, 36 * x.numpy() ** 3 + 3, rtol=1e-13)


def test_gradients_keep_apart_from_each_other_and_from_what_was_given(rng):
    a, b, v = leaf(rng.normal(size=3)), leaf(rng.normal(size=3)), rng.normal(size=3)
    u = leaf(v)
    for create_graph in (False, True):
        for given in (v, u):
            found = tn.grad(a + b, [a, b], given, create_graph=create_graph)
            arrays = [v, u.data, a.data, b.data, *(g.data for g in found)]
            assert not any(np.shares_memory(p, q) for i, p in enumerate(arrays) for q in arrays[:i])
            found[0].data[...] = 7.0
            np.testing.assert_array_equal(found[1].data, v)
    (g,) = tn.grad(a + b, a, u, create_graph=True)
    np.testing.assert_array_equal(tn.grad(g, u, v)[0].numpy(), v)
    (g * g).sum().backward()
    np.testing.assert_allclose(u.grad, 2 * v)
    assert g.grad is None  # equal to u, but no leaf itself


def test_under_no_grad(rng):
    x = leaf(rng.normal(size=3))
    y = (x**2 * x).sum()  # two paths, which meet in x
    with tn.no_grad():
        (plain,) = tn.grad(y, x)
        (g,) = tn.grad(y, x, create_graph=True)
        _, h = tn.hvp(lambda x: (x**3).sum(), x, np.ones(3))
        assert not (x * x).requires_grad
    assert g.requires_grad
    np.testing.assert_allclose(plain.numpy(), 3 * x.numpy() ** 2, rtol=1e-13)
    np.testing.assert_allclose(tn.grad(g.sum(), x)[0].numpy(), 6 * x.numpy(), rtol=1e-13)
    np.testing.assert_allclose(h.numpy(), 6 * x.numpy(), rtol=1e-13)


def test_in_threads(rng):
    """Graphs of their own, one leaf that all share, and no gradient left behind."""
    shared, values, found = leaf(rng.normal(size=5)), rng.normal(size=(4, 5)), [None] * 4

    def work(k):
        for _ in range(10):
            x = leaf(values[k])
            (g,) = tn.grad((tn.sin(x) * shared).sum(), x, create_graph=True)
            found[k] = tn.grad((g * shared).sum(), [x, shared])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    s = shared.numpy()
    for x, (gx, gs) in zip(values, found, strict=True):
        np.testing.assert_allclose(gx.numpy(), -np.sin(x) * s**2, rtol=1e-12)
        np.testing.assert_allclose(gs.numpy(), 2 * np.cos(x) * s, rtol=1e-12)
    assert shared.grad is None


def test_a_formula_that_runs_in_one_thread_closes_no_tensor_in_another():
    inside, done, seen = threading.Event(), threading.Event(), []

    @tn.op("slow")
    def slow(xp, x):
        if xp is not np:
            inside.set()
            done.wait(10)
        return x * x, x

    @slow.backward
    def _(xp, dy, x):
        return 2.0 * dy * x

    x = leaf(np.array([1.0, 2.0]))
    y = slow(x).sum()
    thread = threading.Thread(target=lambda: seen.append(tn.grad(y, x, create_graph=True)))
    thread.start()
    assert inside.wait(10)
    assert (x * x).numpy().tolist() == [1.0, 4.0]
    done.set()
    thread.join(10)
    assert seen[0][0].numpy().tolist() == [2.0, 4.0]


def test_a_deep_chain():
    n = 5000
    x = leaf(np.array([0.3, -0.2]))
    y = x
    for _ in range(n):
        y = y * 1.0001
    y = y * y
    (g,) = tn.grad(y.sum(), x, create_graph=True)
    (h,) = tn.grad(g.sum(), x, create_graph=True)
    np.testing.assert_allclose(g.numpy(), 2 * 1.0001 ** (2 * n) * x.numpy(), rtol=1e-9)
    np.testing.assert_allclose(h.numpy(), 2 * 1.0001 ** (2 * n) * np.ones(2), rtol=1e-9)


# Kinks, corners, dtypes, layouts


def test_at_kinks_the_second_derivative_follows_the_first():
    """Where the first derivative takes one side by convention, the second is the slope of that side, or between."""
    x = leaf(np.zeros(2))
    for function, slope in [(F.relu, 0.0), (tn.abs, 0.0), (lambda x: tn.maximum(x, 0.0), 0.5)]:
        (g,) = tn.grad(function(x).sum(), x, create_graph=True)
        np.testing.assert_array_equal(g.numpy(), [slope] * 2)
        np.testing.assert_array_equal(tn.grad(g.sum(), x)[0].numpy(), [0.0] * 2)
    ties = leaf(np.array([1.0, 1.0, 0.0]))
    (g,) = tn.grad((ties.max() ** 2).sum(), ties, create_graph=True)
    np.testing.assert_array_equal(g.numpy(), [1.0, 1.0, 0.0])
    (h,) = tn.grad(g, ties, np.array([1.0, 0.0, 0.0]))
    np.testing.assert_array_equal(h.numpy(), [0.5, 0.5, 0.0])  # 2 · ½ · ½


@pytest.mark.parametrize("p", [1, 2, 3, 2.0, 4.0])
def test_powers_where_everything_is_zero(p):
    """y = w xᵖ at w = x = 0, as behind a relu: ∂²y/∂w∂x = p xᵖ⁻¹."""
    w, x = leaf(np.zeros(2)), leaf(np.zeros(2))
    (g,) = tn.grad((w * x**p).sum(), x, create_graph=True)
    gw, gx = tn.grad(g.sum(), [w, x])
    np.testing.assert_array_equal(gw.numpy(), [1.0 if p == 1 else 0.0] * 2)
    np.testing.assert_array_equal(gx.numpy(), [0.0] * 2)


@pytest.mark.parametrize(
    "row", [[0.0, 2.0, 3.0, -1.5], [0.0, 0.0, 3.0, -1.5], [0.0, 0.0, 0.0, 2.0], [0.5, 2.0, 3.0, 1]]
)
def test_products_with_zeros(row):
    """∂²Π/∂xᵢ∂xⱼ is the product of the others."""
    hessian = tn.jacobian(partial(gradient_of, tn.prod), np.array(row)).numpy()
    expected = np.zeros((4, 4))
    for i, j in np.ndindex(4, 4):
        if i != j:
            expected[i, j] = math.prod(v for k, v in enumerate(row) if k not in (i, j))
    np.testing.assert_allclose(hessian, expected, rtol=1e-14)


def test_jvp_does_not_count_an_infinite_slope_as_none():
    with np.errstate(divide="ignore"):
        _, t = tn.jvp(tn.sqrt, np.array([0.0, 4.0]), np.array([2.0, 2.0]))
    np.testing.assert_array_equal(t.numpy(), [np.inf, 0.5])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.longdouble])
@pytest.mark.parametrize("name", ["rms_norm", "softmax", "gelu", "norm, linear, gelu"])
def test_dtypes(name, dtype, rng):
    """The result has the input's dtype, and float16 costs no more than its own rounding."""
    function, *shapes = LAYERS[name]
    arrays = [rng.normal(size=s).astype(dtype) for s in shapes]
    u = [rng.normal(size=s).astype(dtype) for s in shapes]

    def second(kind):
        xs = [leaf(a.astype(kind)) for a in arrays]
        gradients = tn.grad((function(*xs) ** 2).sum(), xs, create_graph=True)
        return gradients, tn.grad(list(gradients), xs, [d.astype(kind) for d in u], create_graph=True)

    for found, expected in zip(second(dtype), second(np.float64), strict=True):
        assert {g.dtype for g in found} == {np.dtype(dtype)}
        for g, e in zip(found, expected, strict=True):
            tolerance = 30 * float(np.finfo(dtype).eps) if dtype != np.longdouble else 1e-13
            size = np.abs(e.numpy()).max()
            np.testing.assert_allclose(g.numpy().astype(float), e.numpy(), rtol=tolerance, atol=tolerance * size)


def test_float16_is_summed_in_float32_between_the_orders():
    """In float16, 300² is ∞, and 5000 ones stop at 2048."""
    x = tn.tensor(np.full(5000, 300.0), dtype=np.float16, requires_grad=True)
    w = tn.tensor(1.0, dtype=np.float16, requires_grad=True)
    (g,) = tn.grad((x * w).mean(), w, create_graph=True)
    assert (g.dtype, g.item()) == (np.float16, 300.0)
    (h,) = tn.grad(g, x)
    assert h.dtype == np.float16
    np.testing.assert_allclose(h.numpy().astype(float), 1 / 5000, rtol=1e-3)
    (k,) = tn.grad(tn.grad(F.rms_norm(x, 5000, None, 0.0), x, np.ones(5000), create_graph=True)[0].sum(), x)
    assert np.isfinite(k.numpy()).all()


def test_mixed_dtypes_each_keep_their_own(rng):
    a, b = leaf(rng.normal(size=3).astype(np.float32)), leaf(rng.normal(size=3))
    (ga,) = tn.grad((a * a * b).sum(), a, create_graph=True)
    haa, hab = tn.grad(ga, [a, b], np.ones(3))
    assert (ga.dtype, haa.dtype, hab.dtype) == (np.float32, np.float32, np.float64)
    np.testing.assert_allclose(haa.numpy(), 2 * b.numpy(), rtol=1e-6)
    np.testing.assert_allclose(hab.numpy(), 2 * a.numpy(), rtol=1e-6)


LAYOUTS = {
    "reversed": lambda a: a[::-1, ::-1],
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "transposed": lambda a: np.asfortranarray(a),
    "repeated": lambda a: np.broadcast_to(a[:1], a.shape),
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, rng):
    array = LAYOUTS[layout](rng.normal(size=(3, 4)))
    before, w, u = np.array(array, np.float64), rng.normal(size=(4, 4)), rng.normal(size=(3, 4))

    def second(array):
        x = tn.as_tensor(array, requires_grad=True)
        (g,) = tn.grad((tn.tanh(x @ w) ** 3).sum(), x, create_graph=True)
        return tn.grad(g, x, u)[0].numpy()

    np.testing.assert_allclose(second(array), second(before), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(array, before)


def test_broadcast_inputs(rng):
    a, b = leaf(rng.normal(size=(2, 1))), leaf(rng.normal(size=3))
    ga, gb = tn.grad((tn.exp(a * b)).sum(), [a, b], create_graph=True)
    assert (ga.shape, gb.shape) == ((2, 1), (3,))
    found = tn.grad(ga.sum(), [a, b])
    va, vb = a.numpy(), b.numpy()
    np.testing.assert_allclose(found[0].numpy(), (np.exp(va * vb) * vb**2).sum(axis=1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(found[1].numpy(), (np.exp(va * vb) * (1 + va * vb)).sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    "index",
    [[0, 0, 2], np.array([True, False, True]), (slice(None), [1, 1]), (slice(None, None, -1), 0), ([0, 0], [1, 1]),
     np.int64(1), None, ..., tn.tensor([2, 2])],
    ids=repr,
)  # fmt: skip
def test_indexing(index, rng):
    """y = x[index]³: where an element is taken k times, its second derivative is Σ 6 x c over its places."""
    x = leaf(rng.normal(size=(3, 2)))
    plain = index.numpy() if isinstance(index, tn.Tensor) else index
    c, u = rng.normal(size=x.numpy()[plain].shape), rng.normal(size=(3, 2))
    (g,) = tn.grad(x[index] ** 3, x, c, create_graph=True)
    (h,) = tn.grad(g, x, u)
    weight = np.zeros((3, 2))
    np.add.at(weight, plain, c)
    np.testing.assert_allclose(h.numpy(), 6 * x.numpy() * weight * u, rtol=1e-12, atol=1e-14)


# Models


def wide(model):
    """The model with float64 parameters."""
    for _, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, tn.nn.Parameter):
                setattr(module, name, tn.nn.Parameter(value.numpy().astype(np.float64)))
    return model


@pytest.mark.parametrize("norm", ["rms", "layer", "none"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_a_gradient_penalty(norm, activation, rng):
    """∂/∂w of ‖∂loss/∂x‖², with weights that no one passed to any function: modules hold them."""
    model = wide(tn.nn.PreNormMLP(3, 4, depth=2, out_features=3, norm=norm, activation=activation, rng=1))
    batch, target = rng.normal(size=(5, 3)), np.array([0, 2, 1, 1, 0])
    parameters = list(model.parameters())

    def penalty(create_graph):
        x = leaf(batch)
        (g,) = tn.grad(F.cross_entropy(model(x), target), x, create_graph=create_graph)
        return (g * g).sum()

    penalty(create_graph=True).backward()
    us = [rng.normal(size=p.shape) / p.size**0.5 for p in parameters]
    found = sum(np.sum(u * p.grad) for u, p in zip(us, parameters, strict=True) if p.grad is not None)
    start = [p.numpy().copy() for p in parameters]

    def moved(t):
        for p, w, u in zip(parameters, start, us, strict=True):
            p.data = w + t * u
        return penalty(create_graph=False).item()

    numeric = richardson(moved, h=1e-3 if activation == "relu" else 1e-2)
    np.testing.assert_allclose(found, numeric, rtol=1e-7)


def test_a_gradient_penalty_trains(rng):
    model = tn.nn.PreNormMLP(3, 8, depth=1, out_features=1, activation="silu", rng=0)
    optimizer = tn.optim.AdamW(model.parameters(), lr=0.01)
    batch = rng.normal(size=(16, 3)).astype(np.float32)
    penalties = []
    for _ in range(30):
        x = leaf(batch)
        (g,) = tn.grad(model(x).sum(), x, create_graph=True)
        penalty = ((g**2).sum(axis=-1) - 1.0) ** 2
        model.zero_grad()
        penalty.mean().backward()
        optimizer.step()
        penalties.append(penalty.mean().item())
        assert x.grad is not None
    assert penalties[-1] < 0.2 * penalties[0]


def test_a_loss_after_steps_that_are_differentiated_through(rng):
    """Three inner steps w ← w − α ∂ℓ/∂w, then the outer loss as a function of the first w and of α."""
    a, b = rng.normal(size=(6, 3)), rng.normal(size=(6, 3))
    ya, yb, start = rng.normal(size=6), rng.normal(size=6), rng.normal(size=3)

    def loss(x, y, w):
        return ((tn.tanh(x @ w) - y) ** 2).mean()

    def outer(w, rate):
        for _ in range(3):
            (g,) = tn.grad(loss(a, ya, w), w, create_graph=True)
            w = w - rate * g
        return loss(b, yb, w)

    w, rate, u = leaf(start), leaf(0.3 + np.zeros(())), rng.normal(size=3)
    outer(w, rate).backward()
    numeric = richardson(lambda t: outer(leaf(start + t * u), rate).item())
    np.testing.assert_allclose(np.sum(w.grad * u), numeric, rtol=1e-8)
    numeric = richardson(lambda t: outer(leaf(start), rate + t).item())
    np.testing.assert_allclose(rate.grad, numeric, rtol=1e-8)


def test_dropout_keeps_its_mask(rng):
    """The mask of the forward that was recorded, though the generator has gone on since."""
    source = np.random.default_rng(0)
    x = leaf(rng.normal(size=(20, 20)))
    y = F.dropout(x, 0.5, rng=source)
    kept = y.numpy() != 0
    z = (F.dropout(y, 0.0, rng=source) ** 3).sum()
    (g,) = tn.grad(z, x, create_graph=True)
    np.testing.assert_array_equal(g.numpy() != 0, kept)
    (h,) = tn.grad(g.sum(), x)
    np.testing.assert_allclose(h.numpy(), np.where(kept, 48 * x.numpy(), 0.0), rtol=1e-12)


# Never a wrong number: formulas that do not run on Tensors as they ran on arrays


def user_op(name, forward, backward):
    made = tn.op(name)(forward)
    made.backward(backward)
    return made


def by_numpy(xp, x):
    y = np.exp(x)
    return y, y


def times_y(xp, dy, y):
    return dy * y


REFUSED = {
    "np.exp": (by_numpy, times_y, "ufunc"),
    "np.sum": (lambda xp, x: (x * np.sum(x), x), lambda xp, dy, x: dy * np.sum(x) + np.sum(dy * x), "sum"),
    "np.dot": (
        lambda xp, x: (x * np.dot(x, x), x),
        lambda xp, dy, x: dy * np.dot(x, x) + 2 * x * np.dot(dy, x),
        "numpy: plain",
    ),
    "np.asarray(x)": (lambda xp, x: (np.asarray(x) ** 2, x), lambda xp, dy, x: 2.0 * dy * x, "numpy: plain numbers"),
    "np.asarray(x) in backward": (lambda xp, x: (x**2, x), lambda xp, dy, x: 2.0 * dy * np.asarray(x), "numpy"),
    "float(x.sum())": (lambda xp, x: (x * float(x.sum()), x), lambda xp, dy, x: dy * x.sum() + (dy * x).sum(), "item"),
    "x.sum().item()": (lambda xp, x: (x * x.sum().item(), x), lambda xp, dy, x: dy * x.sum() + (dy * x).sum(), "item"),
    "math.exp": (
        lambda xp, x: (x * math.exp(x[0]), x),
        lambda xp, dy, x: dy * math.exp(x[0]) + xp.where(np.arange(3) == 0, (dy * x).sum() * math.exp(x[0]), 0.0),
        "item: plain numbers",
    ),
    "if x[0]": (lambda xp, x: (x * x if x[0] else x, x), lambda xp, dy, x: 2.0 * dy * x, "item"),
    "the buffer": (lambda xp, x: (np.frombuffer(memoryview(x)) ** 2, x), lambda xp, dy, x: 2.0 * dy * x, "memoryview"),
    "a missing function": (lambda xp, x: (xp.sinh(x), x), lambda xp, dy, x: dy * xp.cosh(x), r"xp\.sinh is not among"),
    "a missing method": (lambda xp, x: (x.copy() ** 2, x), lambda xp, dy, x: 2.0 * dy * x, "copy"),
    "an unknown option": (
        lambda xp, x: (xp.sum(x * x, dtype=np.float64), x), lambda xp, dy, x: 2.0 * dy * x, "dtype",
    ),
    "out=": (lambda xp, x: (xp.multiply(x, x, out=xp.zeros(3)), x), lambda xp, dy, x: 2.0 * dy * x, "xp.zeros|out"),
    "item assignment": (
        lambda xp, x: (x * x, x), lambda xp, dy, x: put(xp.zeros_like(dy), 2.0 * dy * x), "item assignment",
    ),
    "a view that is added to, forward": (
        lambda xp, x: (add_to_view(xp.zeros_like(x), x * x), add_to_view(xp.zeros_like(x), x)),
        lambda xp, dy, x: 2.0 * dy * x, "other numbers",
    ),
    "a view that is added to, backward": (
        lambda xp, x: (x * x, x), lambda xp, dy, x: add_to_view(xp.zeros_like(x), 2.0 * dy * x), "other numbers",
    ),
    "two names of one array": (
        lambda xp, x: twice(x), lambda xp, dy, h: dy * 4.0 * h, "other numbers",
    ),
    "tn.tensor inside": (lambda xp, x: (tn.tensor(x) ** 2, x), lambda xp, dy, x: 2.0 * dy * x, "tensor: plain"),
    "tn.Tensor inside": (lambda xp, x: (tn.Tensor(x) ** 2, x), lambda xp, dy, x: 2.0 * dy * x, "Tensor: plain"),
    "a detached tensor": (
        lambda xp, x: (tn.as_tensor(x).detach() ** 2, x), lambda xp, dy, x: 2.0 * dy * x, "detach: plain",
    ),
    "backward inside": (lambda xp, x: (x * x, x), lambda xp, dy, x: by_backward(x, dy), "backward: plain"),
    "no_grad inside": (lambda xp, x: under_no_grad(x), lambda xp, dy, x: 2.0 * dy * x, "numpy: plain"),
    "a deep copy": (lambda xp, x: (copy.deepcopy(x) ** 2, x), lambda xp, dy, x: 2.0 * dy * x, "copy: plain"),
    "a pickle": (lambda xp, x: (pickle.loads(pickle.dumps(x)) ** 2, x), lambda xp, dy, x: 2.0 * dy * x, "copy: plain"),
    "an error on Tensors": (
        lambda xp, x: (x * x, x) if xp is np else 1 / 0, lambda xp, dy, x: 2.0 * dy * x, "division by zero",
    ),
    "one thing returned": (
        lambda xp, x: (x * x, x) if xp is np else x * x, lambda xp, dy, x: 2.0 * dy * x, "must return two things",
    ),
    "another shape returned": (
        lambda xp, x: (x * x, x), lambda xp, dy, x: (2.0 * dy * x)[: 3 if xp is np else 2], r"shape \(2,\)",
    ),
    "other gradients": (
        lambda xp, x: (x * x, x), lambda xp, dy, x: (2.0 if xp is np else 2.1) * dy * x, "other numbers",
    ),
    "another cache": (
        lambda xp, x: (x * x, x if xp is np else 1.1 * x), lambda xp, dy, x: 2.0 * dy * x, "other numbers",
    ),
    "a cache of another kind": (
        lambda xp, x: (x * x, {"x": x} if xp is np else (x,)),
        lambda xp, dy, cache: 2.0 * dy * (cache["x"] if xp is np else cache[0]), "other numbers",
    ),
}  # fmt: skip


def put(array, values):
    array[...] = values
    return array


def by_backward(x, dy):
    t = tn.as_tensor(x, requires_grad=True)
    (t * t).backward(dy)
    return t.grad


def by_grad(x, dy):
    t = tn.as_tensor(x, requires_grad=True)
    return tn.grad(t**3, t, dy)[0]


def add_to_view(array, values):
    view = array[:]
    view += values
    return array


def twice(x):
    h = x * 1.0
    y = h
    y += x  # h is 2x now, on arrays
    return y * h, h


def under_no_grad(x):
    with tn.no_grad():
        return (tn.as_tensor(x) ** 2).numpy(), x


@pytest.mark.parametrize("name", REFUSED)
def test_a_formula_that_cannot_be_differentiated_again_is_refused_by_name(name, rng):
    forward, backward, reason = REFUSED[name]
    op = user_op("mine", forward, backward)
    x = leaf(rng.uniform(0.5, 1.5, 3))
    y = op(tn.sin(x))
    c = rng.normal(size=y.shape)
    (first,) = tn.grad(y, x, c)  # which is right:
    h = 1e-6
    for i in range(3):
        step = np.zeros(3)
        step[i] = h
        rise, fall = (np.sum(c * op(tn.sin(x.numpy() + s)).numpy()) for s in (step, -step))
        np.testing.assert_allclose(first.numpy()[i], (rise - fall) / (2 * h), rtol=1e-6, atol=1e-7)
    with pytest.raises(GraphError, match=rf"^grad: mine cannot be differentiated again(.|\n)*({reason})"):
        tn.grad(y, x, c, create_graph=True)
    assert not graph.is_closed()
    assert x.grad is None
    assert tn.exp(x).numpy().shape == (3,)
    np.testing.assert_array_equal(tn.grad(y, x, c)[0].numpy(), first.numpy())  # nothing was lost
    y.backward(c)
    np.testing.assert_array_equal(x.grad, first.numpy())


def test_a_formula_is_asked_for_more_only_on_the_way_to_an_input(rng):
    """Elsewhere it need not run on Tensors: what it gives is a constant there."""
    op = user_op("mine", by_numpy, times_y)
    x, w = leaf(rng.normal(size=3)), leaf(rng.normal(size=3))
    y = (op(w) * x**2).sum()
    (g,) = tn.grad(y, x, create_graph=True)
    found = tn.grad(g.sum(), [x, w])  # to w by the first derivative of its formula
    np.testing.assert_allclose(found[0].numpy(), 2 * np.exp(w.numpy()), rtol=1e-13)
    np.testing.assert_allclose(found[1].numpy(), 2 * x.numpy() * np.exp(w.numpy()), rtol=1e-13)
    with pytest.raises(GraphError, match="mine cannot be differentiated again"):
        tn.grad(g.sum(), w, create_graph=True)


def test_an_operation_without_a_backward_is_refused():
    @tn.op("half")
    def half(xp, x):
        return x / 2, None

    x = leaf([1.0, 2.0])
    for create_graph in (False, True):
        with pytest.raises(GraphError, match="half has no backward formula"):
            tn.grad(half(x).sum(), x, create_graph=create_graph)


ALLOWED = {  # of sin x; each is x³, or on its way there
    "operators": (lambda xp, x: (x * x * x, x), lambda xp, dy, x: 3.0 * dy * x * x),
    "+= on what is the formula's own": (lambda xp, x: cubed(x), lambda xp, dy, x: 3.0 * dy * x * x),
    "functions of xp": (
        lambda xp, x: (xp.multiply(xp.square(x), xp.asarray(x)), x),
        lambda xp, dy, x: xp.negative(xp.multiply(-3.0, dy)) * xp.power(x, 2),
    ),
    "masks": (
        lambda xp, x: (xp.where((x > 0) & ~(x > 99.0) | xp.isnan(x), x * x * x, x**3), x),
        lambda xp, dy, x: xp.sign(x) * 3.0 * dy * x * abs(x),
    ),
    "branches on constants": (
        lambda xp, x: (x * x * x if xp.any(x > 0) and not xp.all(x > 9.0) else x, x),
        lambda xp, dy, x: 3.0 * dy * x * x,
    ),
    "reductions and einsum": (
        lambda xp, x: (xp.einsum("i,i,i->i", x, x, x) + 0.0 * xp.sum(x), x),
        lambda xp, dy, x: 3.0 * xp.matmul((dy * x)[None, :] * xp.stack([x]), xp.ones_like(x)[:, None])[0]
        * xp.zeros_like(x) + 3.0 * dy * x * x,
    ),
    "a cache of everything": (
        lambda xp, x: (x**3, {"x": [x, (None, 2, "text")], "n": x.shape[0]}),
        lambda xp, dy, cache: 3.0 * dy * cache["x"][0] ** cache["x"][1][1],
    ),
    "np.transpose and np.reshape": (
        lambda xp, x: (np.transpose(x[None])[:, 0] ** 3, x), lambda xp, dy, x: 3.0 * dy * x * x,
    ),
    "constants of numpy's": (
        lambda xp, x: (x**3 * np.float64(1.0) * np.ones(3), x), lambda xp, dy, x: np.full(3, 3.0) * dy * x * x,
    ),
    "tn.grad inside": (lambda xp, x: (x * x * x, x), lambda xp, dy, x: by_grad(x, dy)),
    "tn.vjp inside": (lambda xp, x: (x**3, x), lambda xp, dy, x: tn.vjp(lambda t: t**3, x, dy)[1]),
    "functions of tinynorm's": (
        lambda xp, x: ((tn.as_tensor(x) ** 3) if xp is not np else x**3, x), lambda xp, dy, x: 3.0 * dy * x * x,
    ),
}  # fmt: skip


def cubed(x):
    y = x * x
    y *= x
    y += 0.0
    return y, x


@pytest.mark.parametrize("name", ALLOWED)
def test_what_a_formula_may_do(name, rng):
    op = user_op("cube", *ALLOWED[name])
    x, c = leaf(rng.uniform(0.2, 1.5, 3)), rng.normal(size=3)
    check_orders((op(tn.sin(x)) * c).sum(), [x], [rng.normal(size=3)])


def test_a_running_product_of_a_users_own(rng):
    """yᵢ = Π_{j≤i} xⱼ, x̄ⱼ = Σ_{i≥j} ȳᵢ yᵢ / xⱼ: among Tensors, `cumprod` is made of other operations."""
    op = user_op(
        "gains",
        lambda xp, x: ((y := xp.cumprod(x, axis=-1)), (x, y)),
        lambda xp, dy, cache: xp.cumsum((dy * cache[1])[..., ::-1], axis=-1)[..., ::-1] / cache[0],
    )
    for n in (1, 2, 5, 8):
        x = leaf(rng.uniform(0.5, 1.5, (2, n)))
        check_orders((op(x) * rng.normal(size=(2, n))).sum(), [x], [0.3 * rng.normal(size=(2, n))])


def test_a_power_of_two_and_what_it_leaves(rng):
    """x = m 2ⁿ. The exponents are constants, and m has the slope 2⁻ⁿ."""

    def forward(xp, x):
        size = xp.abs(x)
        scale = xp.ldexp(xp.ones_like(size), xp.frexp(size)[1])
        return x * x * scale, (x, scale)

    op = user_op("scaled", forward, lambda xp, dy, cache: dy * (2.0 * cache[0] * cache[1]))
    x = leaf(np.array([0.7, -1.4, 0.3, -0.6]))  # far from the next power of two
    check_orders((tn.sin(op(x)) * rng.normal(size=4)).sum(), [x], [0.1 * rng.normal(size=4)])
    values = np.array([3e38, 1e-38, -0.75, 5.0, 0.0, 1e-44], np.float32)
    m, n = recorded.frexp(t := leaf(values))
    known = np.frexp(values)
    assert (m.numpy().tolist(), n.numpy().tolist()) == (known[0].tolist(), known[1].tolist())
    assert recorded.ldexp(m, n).numpy().tolist() == values.tolist()
    (slope,) = tn.grad(m[:-1].sum(), t)
    assert slope.numpy().tolist() == [*np.ldexp(1.0, -known[1][:-1]).tolist(), 0.0]


def test_a_formula_that_draws_random_numbers_is_refused(rng):
    """It would run again with others; also where its own cache does not show them."""
    source = np.random.default_rng(0)
    own = user_op("own", lambda xp, x: drawn(source, x), lambda xp, dy, cache: 2.0 * dy * cache[0] * cache[1])
    hidden = user_op("hidden", lambda xp, x: (x + source.normal(size=x.shape), None), lambda xp, dy, _: dy)
    x = leaf(rng.normal(size=3))
    for y, name in [(own(x).sum(), "own"), ((hidden(x) ** 2).sum(), "power")]:
        assert tn.grad(y, x)[0].shape == (3,)
        with pytest.raises(GraphError, match=f"{name} cannot be differentiated again.*other numbers"):
            tn.grad(y, x, create_graph=True)
    (g,) = tn.grad(hidden(x).sum(), x, create_graph=True)  # the noise does not matter to this one
    assert g.numpy().tolist() == [1.0] * 3


def drawn(source, x):
    noise = source.normal(size=x.shape)
    return x * x * noise, (x, noise)


def test_a_formula_that_writes_to_what_it_was_given_is_never_differentiated_wrongly(rng):
    def doubled_in_place(xp, x):
        x *= 2.0
        return x, None

    def cache_in_place(xp, dy, cache):
        cache *= 2.0
        return dy * cache

    doubling = user_op("doubling", doubled_in_place, lambda xp, dy, _: 2.0 * dy)
    wearing = user_op("wearing", lambda xp, x: (x * x, x * 1.0), cache_in_place)
    dy_writer = user_op("writer", lambda xp, x: (2.0 * x, None), lambda xp, dy, _: twice_in_place(dy))
    x = leaf(rng.normal(size=3))
    with pytest.raises(GraphError, match="other numbers"):
        tn.grad((doubling(x) ** 2).sum(), x, create_graph=True)
    x = leaf(rng.normal(size=3))
    y = wearing(x).sum()
    np.testing.assert_allclose(tn.grad(y, x)[0].numpy(), 2 * x.numpy())
    with pytest.raises(GraphError, match=r"wearing cannot be differentiated again.*other numbers"):
        tn.grad(y, x, create_graph=True)
    y = (dy_writer(x) * tn.sin(x)).sum()  # Σ 2 x sin x
    (g,) = tn.grad(y, x, create_graph=True)
    v = x.numpy()
    np.testing.assert_allclose(g.numpy(), 2 * (np.sin(v) + v * np.cos(v)), rtol=1e-13)
    np.testing.assert_allclose(tn.grad(g.sum(), x)[0].numpy(), 2 * (2 * np.cos(v) - v * np.sin(v)), rtol=1e-12)
    y = ((tn.sin(x) + dy_writer(x)) ** 2).sum()  # one cotangent for both, which sin's backward keeps
    (h,) = tn.grad(tn.grad(y, x, create_graph=True)[0].sum(), x)
    np.testing.assert_allclose(h.numpy(), 2 * (2 + np.cos(v)) ** 2 - 2 * (2 * v + np.sin(v)) * np.sin(v), rtol=1e-12)


def twice_in_place(dy):
    dy *= 2.0
    return dy


def test_values_that_are_not_finite_raise_no_false_alarm():
    x = leaf(np.array([np.nan, np.inf, -np.inf, 1.0]))
    with np.errstate(invalid="ignore"):
        (g,) = tn.grad(tn.tanh(x).sum() + (x * x).sum(), x, create_graph=True)
        np.testing.assert_array_equal(g.numpy()[:3], [np.nan, np.inf, -np.inf])
        np.testing.assert_allclose(g.numpy()[3], 3.0 - np.tanh(1.0) ** 2, rtol=1e-14)


# Never a wrong number: arrays that changed, and graphs that are gone


def test_a_freed_graph_is_refused_however_little_of_it_is_left():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    h = x * x
    h.sum().backward()
    late = (h * w).sum()
    for create_graph in (False, True):
        for inputs in (x, [x, w], [h, x], [h, w]):
            with pytest.raises(GraphError, match=r"multiply was freed.*retain_graph=True"):
                tn.grad(late, inputs, create_graph=create_graph)
        with pytest.raises(GraphError, match="freed"):
            tn.grad(h, x, [1.0, 1.0], create_graph=create_graph)
    np.testing.assert_array_equal(tn.grad(late, h)[0].numpy(), [3.0, 4.0])  # for this one nothing is missing
    y = (tn.sin(x) ** 2).sum()
    (g,) = tn.grad(y, x, create_graph=True)  # 2 sin x cos x, which still hangs on sin x
    y.backward()
    with pytest.raises(GraphError, match="sin was freed"):
        tn.grad(g.sum(), x)


WRITES = {
    "to a leaf": lambda x, c, h: x.data.fill(7.0),
    "to an array that nobody held": lambda x, c, h: x._overwrite(np.full(3, 7.0)),
    "to a constant": lambda x, c, h: c.fill(7.0),
    "to a result": lambda x, c, h: h.data.fill(7.0),
    "to part of a leaf": lambda x, c, h: x.data[:1].fill(7.0),
}


@pytest.mark.parametrize("late", [False, True], ids=["before the first order", "before the second"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("exposed", [False, True])
def test_a_write_never_changes_a_derivative(write, late, exposed, rng):
    a, c = rng.uniform(0.5, 1.5, 3), rng.normal(size=3)
    held = c.copy()
    x = leaf(a)
    if exposed:
        assert x.data.shape == (3,)
    h = (x * 1.0).reshape(3, 1)  # looks into memory of a result
    y = (tn.sin(h.reshape(3)) * held * x.reshape(1, 3)).sum()
    try:
        if not late:
            WRITES[write](x, held, h)
        (g,) = tn.grad(y, x, create_graph=True)
        np.testing.assert_allclose(g.numpy(), c * (np.sin(a) + a * np.cos(a)), rtol=1e-13)
        if late:
            WRITES[write](x, held, h)
        (again,) = tn.grad(g.sum(), x, create_graph=True)
        np.testing.assert_allclose(again.numpy(), c * (2 * np.cos(a) - a * np.sin(a)), rtol=1e-12)
        assert write == "to a result"  # which is computed again, so that nobody asks for the array
    except GraphError as error:
        assert "changed" in str(error)  # noqa: PT017  # either of two outcomes is right
    assert x.grad is None


@pytest.mark.parametrize("write", ["to a leaf", "to an array that nobody held", "to part of a leaf"])
@pytest.mark.parametrize("look", [lambda x: x.reshape(3, 1), lambda x: x[::-1], lambda x: x[None].T, lambda x: x])
def test_what_looks_into_a_leaf_is_watched_at_every_order(look, write, rng):
    """A view is computed again each time, and looks into the same memory again."""
    x = leaf(rng.uniform(0.5, 1.5, 3))
    y = tn.sin(look(x))
    for _ in range(3):
        (y,) = tn.grad(y.sum(), x, create_graph=True)
        assert tn.grad(y.sum(), x)[0].shape == (3,)
    WRITES[write](x, None, None)
    with pytest.raises(GraphError, match="changed in place"):
        tn.grad(y.sum(), x)


def test_a_result_that_was_written_to_before_it_was_used_is_refused():
    """Its derivative is that of the numbers written; they have no formula to run again."""
    x = leaf(np.array([1.0, 2.0]))
    y = x + 0.0
    y.data[...] = 9.0
    z = (y * y).sum()
    np.testing.assert_array_equal(tn.grad(z, x)[0].numpy(), [18.0, 18.0])
    with pytest.raises(GraphError, match=r"multiply cannot be differentiated again.*a write to an array"):
        tn.grad(z, x, create_graph=True)


@pytest.mark.parametrize(
    ("step", "expected_outcome"),
    [(lambda model: tn.optim.SGD(model.parameters(), lr=0.1).step(), "refused"),
     (lambda model: tn.optim.AdamW(model.parameters(), lr=0.1).step(), "refused"),
     (lambda model: model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()}), "refused"),
     (lambda model: tn.optim.clip_grad_norm_(model.parameters(), 1e-3), "the same")],
    ids=["SGD", "AdamW", "load_state_dict", "clip_grad_norm_"],
)  # fmt: skip
def test_a_step_between_the_orders(step, expected_outcome, rng):
    model = wide(tn.nn.PreNormMLP(3, 4, depth=1, out_features=2, activation="gelu", rng=0))
    x = leaf(rng.normal(size=(5, 3)))
    F.cross_entropy(model(x), [0, 1, 1, 0, 1]).backward()
    y = (model(x) ** 2).sum()
    (g,) = tn.grad(y, x, create_graph=True)
    expected = tn.grad(g.sum(), x)[0].numpy().copy()
    step(model)
    try:
        np.testing.assert_array_equal(tn.grad(g.sum(), x)[0].numpy(), expected)
        np.testing.assert_array_equal(tn.grad(y, x, create_graph=True)[0].numpy(), g.detach().numpy())
        outcome = "the same"
    except GraphError as error:
        outcome = "refused"
        assert "changed" in str(error)  # noqa: PT017
    assert outcome == expected_outcome


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (lambda: np.array([0, 2, 2]), lambda x, i: x[i] ** 3),
        (lambda: np.array([True, False, True]), lambda x, i: x[i] ** 3),
        (lambda: np.array([0, 2, 2]), lambda x, i: tn.take(x, i) ** 3),
        (lambda: np.array([0, 2, 1]), lambda x, i: F.cross_entropy(x * np.ones((3, 1)), i)),
        (lambda: np.array([1.0, 2.0, 3.0]), lambda x, w: F.cross_entropy(x[None] * 1.0, [0], w)),
        (lambda: [0, 2, 2], lambda x, i: x[i] ** 3),
        (lambda: [1.0, 2.0, 3.0], lambda x, c: x**2 * c),
    ],
    ids=["index", "mask", "take", "target", "class weights", "list index", "list"],
)
def test_index_and_target_arrays_may_change(make, function, rng):
    """They are copied, or refused."""
    x, held = leaf(rng.normal(size=3)), make()
    y = function(x, held).sum()
    (expected,) = tn.grad(tn.grad(function(x, make()).sum(), x, create_graph=True)[0].sum(), x)
    held[:] = [True] * 3 if np.asarray(held).dtype == bool else [1] * 3
    (g,) = tn.grad(y, x, create_graph=True)
    np.testing.assert_array_equal(tn.grad(g.sum(), x)[0].numpy(), expected.numpy())


def test_rebinding_data_is_no_write(rng):
    """`x.data = other` leaves the recorded array as it was, and the derivatives belong to that."""
    x = leaf(rng.normal(size=3))
    old = x.numpy().copy()
    y = (x**3).sum()
    x.data = np.zeros(3)
    (g,) = tn.grad(y, x, create_graph=True)
    np.testing.assert_allclose(g.numpy(), 3 * old**2, rtol=1e-13)
    np.testing.assert_allclose(tn.grad(g.sum(), x)[0].numpy(), 6 * old, rtol=1e-13)


# Memory


def test_nothing_is_left_to_the_garbage_collector(rng):
    model = tn.nn.PreNormMLP(3, 4, depth=1, out_features=3, norm="layer", activation="gelu", rng=0)
    batch = rng.normal(size=(4, 3)).astype(np.float32)
    broken = user_op("broken", by_numpy, times_y)

    def work():
        x = leaf(batch)
        loss = F.cross_entropy(model(x), [0, 2, 1, 0])
        (g,) = tn.grad(loss, x, create_graph=True)
        (h,) = tn.grad((g * g).sum(), x, create_graph=True)
        tn.hvp(lambda x: (F.softmax(x) ** 2).sum(), x, batch)
        tn.jacobian(tn.sin, batch[0])
        with pytest.raises(GraphError):
            tn.grad(broken(x).sum(), x, create_graph=True)
        (h * h).sum().backward()
        return [weakref.ref(t) for t in (loss._source, g._source, h._source, x._source, g, h)]

    work()
    model.zero_grad()
    gc.collect()
    gc.disable()
    try:
        assert [found() for found in work()] == [None] * 6
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_derivative_keeps_what_it_was_computed_from_and_no_more():
    x = leaf(np.ones(3))
    y = tn.sin(x)
    (g,) = tn.grad(y.sum(), x, create_graph=True)
    (plain,) = tn.grad(y.sum(), x)
    node = weakref.ref(y._source)
    del y
    assert node() is None  # g = cos x, which needs x alone
    np.testing.assert_allclose(tn.grad(g.sum(), x)[0].numpy(), -np.sin(np.ones(3)))
    assert plain.requires_grad is False


# Errors


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda y, x: tn.grad(1.0, x), DTypeError, "grad: outputs must be a Tensor, or a list, tuple or iterator"),
        (lambda y, x: tn.grad(y, [1.0, 2.0]), DTypeError, r"grad: inputs must be a Tensor.*\[1.0, 2.0\]"),
        (lambda y, x: tn.grad(y, x.numpy()), DTypeError, "grad: inputs must be a Tensor"),
        (lambda y, x: tn.grad(y, []), DTypeError, "grad: inputs must be"),
        (lambda y, x: tn.grad([], x), DTypeError, "grad: outputs must be"),
        (lambda y, x: tn.grad(y, iter([])), DTypeError, "grad: inputs must be"),
        (lambda y, x: tn.grad({"y": y}, x), DTypeError, "grad: outputs must be"),
        (lambda y, x: tn.grad(y, None), DTypeError, "grad: inputs must be"),
        (lambda y, x: tn.grad(y, x), ShapeError, r"grad: shape \(2,\) holds 2 elements.*grad_outputs="),
        (lambda y, x: tn.grad(y, x, np.ones(3)), ShapeError, r"grad: grad_outputs has shape \(3,\).*\(2,\)"),
        (lambda y, x: tn.grad(y, x, 1.0), ShapeError, r"grad: grad_outputs has shape \(\)"),
        (lambda y, x: tn.grad(y, x, "ab"), DTypeError, "grad: grad_outputs"),
        (lambda y, x: tn.grad(y, x, np.ones(2, bool)), DTypeError, "grad: grad_outputs must hold real numbers"),
        (lambda y, x: tn.grad([y, y], x, [np.ones(2)]), ShapeError, "grad: grad_outputs .* each of the 2 outputs"),
        (lambda y, x: tn.grad([y, y], x, np.ones((2, 2))), ShapeError, "grad: grad_outputs must be a list or tuple"),
        (lambda y, x: tn.grad([y, y], x, [np.ones(2), None]), ShapeError, "grad: shape"),
        (lambda y, x: tn.grad(y.sum(), tn.tensor(1.0)), GraphError, r"grad: one of the inputs.*requires_grad=True"),
        (lambda y, x: tn.grad(y.sum(), [x, x.detach()]), GraphError, "grad: one of the inputs.*requires no gradient"),
        (lambda y, x: tn.grad(tn.tensor(1.0), x), GraphError, "grad: one of the outputs.*has no graph"),
        (lambda y, x: tn.grad(y > 1.0, x, y), GraphError, "grad: one of the outputs"),
        (lambda y, x: tn.vjp(tn.sin, x), ShapeError, r"vjp: shape \(2,\) holds 2 elements.*v="),
        (lambda y, x: tn.vjp(tn.sin, x, np.ones(3)), ShapeError, r"vjp: v has shape \(3,\)"),
        (lambda y, x: tn.vjp(tn.sin, "text", 1.0), DTypeError, "vjp"),
        (lambda y, x: tn.vjp(tn.sin, np.arange(2), np.ones(2)), DTypeError, "vjp: inputs must be floating-point.*int"),
        (lambda y, x: tn.vjp(lambda x: 3.0, x, 1.0), DTypeError, "vjp: fn must give one Tensor, not float"),
        (lambda y, x: tn.vjp(lambda x: (x, x), x, 1.0), DTypeError, "vjp: fn must give one Tensor, not tuple"),
        (lambda y, x: tn.vjp(lambda x: x > 0, x, 1.0), DTypeError, "vjp: result must be floating-point, not bool"),
        (lambda y, x: tn.jvp(tn.sin, x), ShapeError, r"jvp: shape \(2,\) holds 2 elements.*v="),
        (lambda y, x: tn.jvp(tn.sin, x, np.ones((2, 1))), ShapeError, r"jvp: v has shape \(2, 1\)"),
        (lambda y, x: tn.jvp(tn.maximum, (x, x), np.ones(2)), ShapeError, "jvp: v must be a tuple like the inputs"),
        (lambda y, x: tn.jvp(tn.maximum, (x, x), (x,)), ShapeError, "jvp: v must be a tuple"),
        (lambda y, x: tn.jvp(lambda x: x.astype(int), x, x), DTypeError, "jvp: result must be floating-point"),
        (lambda y, x: tn.hvp(tn.sin, x, x), ShapeError, r"hvp: fn must give one element, not shape \(2,\)"),
        (lambda y, x: tn.hvp(lambda x: x.sum(), x, np.ones(3)), ShapeError, "hvp: v has shape"),
        (lambda y, x: tn.jacobian(tn.sin, 3), DTypeError, "jacobian: inputs must be floating-point"),
        (lambda y, x: tn.jacobian(lambda x: None, x), DTypeError, "jacobian: fn must give one Tensor"),
    ],
)  # fmt: skip
def test_errors_name_the_function_the_argument_and_the_remedy(call, error, message):
    x = leaf([1.0, 2.0])
    y = x * x
    with pytest.raises(error, match=message):
        call(y, x)
    assert x.grad is None
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_inputs_of_functions_may_be_anything_that_makes_a_tensor():
    for point in ([1.0, 2.0], np.array([1.0, 2.0]), tn.tensor([1.0, 2.0]), leaf([1.0, 2.0])):
        y, g = tn.vjp(lambda x: x**2, point, [10.0, 1.0])
        assert (y.numpy().tolist(), g.numpy().tolist()) == ([1.0, 4.0], [20.0, 4.0])
        assert tn.jvp(lambda x: x**2, point, [10.0, 1.0])[1].numpy().tolist() == [20.0, 4.0]
    _, g = tn.vjp(lambda x: x**2, 3.0)
    assert g.item() == 6.0
    for point in [(np.ones(2), np.ones(2)), [np.ones(2), tn.tensor([1.0, 1.0])]]:
        _, found = tn.vjp(lambda a, b: (a * b).sum(), point)
        assert type(found) is tuple
        assert [g.numpy().tolist() for g in found] == [[1.0, 1.0]] * 2


def test_functions_leave_their_inputs_alone(rng):
    array = rng.normal(size=3)
    x = leaf(array)
    for call in (tn.vjp, tn.jvp):
        call(lambda x: (x**3).sum() * x, x, np.ones(3))
    tn.hvp(lambda x: (x**3).sum(), x, np.ones(3))
    tn.jacobian(lambda x: x**3, x)
    assert x.grad is None
    np.testing.assert_array_equal(x.numpy(), array)
    y, g = tn.vjp(lambda x: x**3, x, np.ones(3))
    assert not y.requires_grad
    assert not g.requires_grad


def test_functions_whose_results_are_differentiated_in_turn(rng):
    x, w, v = leaf(rng.normal(size=3)), leaf(rng.normal(size=3)), leaf(rng.normal(size=3))
    a, b, c = x.numpy(), w.numpy(), v.numpy()
    y, g = tn.vjp(lambda x: tn.sin(x) * w, x, v, create_graph=True)
    for result, wrt, expected in [
        (y, x, b * np.cos(a)), (y, w, np.sin(a)), (g, x, -c * b * np.sin(a)), (g, w, c * np.cos(a)),
        (g, v, b * np.cos(a)),
    ]:  # fmt: skip
        np.testing.assert_allclose(tn.grad(result.sum(), wrt)[0].numpy(), expected, rtol=1e-12)
    _, t = tn.jvp(lambda x: tn.sin(x) * w, x, v, create_graph=True)
    for wrt, expected in [(x, -c * b * np.sin(a)), (w, c * np.cos(a)), (v, b * np.cos(a))]:
        np.testing.assert_allclose(tn.grad(t.sum(), wrt)[0].numpy(), expected, rtol=1e-12)
    _, h = tn.hvp(lambda x: (tn.sin(x) * w).sum(), x, v, create_graph=True)
    for wrt, expected in [(x, -c * b * np.cos(a)), (w, -c * np.sin(a)), (v, -b * np.sin(a))]:
        np.testing.assert_allclose(tn.grad(h.sum(), wrt)[0].numpy(), expected, rtol=1e-12)


def test_an_argument_is_not_what_the_function_holds_besides(rng):
    """f(z) = z x at z = x: ∂f/∂z is x, though the argument and what f holds are one Tensor."""
    x, v = leaf(rng.normal(size=3)), rng.normal(size=3)
    for create_graph in (False, True):
        _, g = tn.vjp(lambda z: z * x, x, v, create_graph)
        _, t = tn.jvp(lambda z: z * x, x, v, create_graph)
        np.testing.assert_allclose(g.numpy(), v * x.numpy(), rtol=1e-14)
        np.testing.assert_allclose(t.numpy(), v * x.numpy(), rtol=1e-14)
    np.testing.assert_allclose(tn.grad(g.sum(), x)[0].numpy(), v, rtol=1e-14)


def test_functions_that_ignore_an_input(rng):
    x, w = rng.normal(size=2), leaf(rng.normal(size=2))
    for fn in (lambda a, b: a * 2.0, lambda a, b: tn.tensor(np.ones(2)), lambda a, b: w * 1.0):
        _, (ga, gb) = tn.vjp(fn, (x, x), np.ones(2))
        _, t = tn.jvp(fn, (x, x), (np.zeros(2), np.ones(2)))
        ja, jb = tn.jacobian(fn, (x, x), create_graph=True)
        assert not gb.numpy().any()
        assert not t.numpy().any()
        assert not jb.numpy().any()
        np.testing.assert_array_equal(ja.numpy(), np.diag(ga.numpy()))


# Running a graph again on other numbers


@tn.formulas_only()
def test_replay_gives_what_was_recorded(rng):
    """The same bits, since replay runs formulas as well."""
    model = tn.nn.PreNormMLP(3, 4, depth=2, out_features=3, norm="layer", activation="gelu", rng=0)
    loss = F.cross_entropy(model(rng.normal(size=(4, 3)).astype(np.float32)), [0, 2, 1, 0])
    np.testing.assert_array_equal(graph.replay(loss._source, {}), loss.numpy())


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_replay_on_complex_numbers_and_long_doubles(norm, rng):
    """A whole model: a complex step against backward, and the value against a float64 computation."""
    model = wide(tn.nn.PreNormMLP(3, 4, depth=2, out_features=3, norm=norm, activation="gelu", rng=3))
    x = leaf(rng.normal(size=(5, 3)))
    loss = F.cross_entropy(model(x), [0, 2, 1, 1, 0])
    wanted = [x, *model.parameters()]
    gradients = tn.grad(loss, wanted)
    for t, g in zip(wanted, gradients, strict=True):
        np.testing.assert_allclose(g.numpy(), complex_gradient(loss, t), rtol=1e-12, atol=1e-14)
    exact = graph.replay(loss._source, {t._source: t.numpy().astype(np.longdouble) for t in wanted})
    assert exact.dtype == np.longdouble
    np.testing.assert_allclose(float(exact), loss.item(), rtol=1e-14)
    if np.finfo(np.longdouble).eps < np.finfo(np.float64).eps:
        assert exact != loss.item()  # it has more digits


def test_replay_with_other_values_on_the_way():
    x = leaf(np.array([1.0, 2.0]))
    h = x * x
    y = (h + x).sum()
    assert graph.replay(y._source, {x._source: np.array([3.0, 4.0])}) == 9 + 16 + 7
    assert graph.replay(y._source, {h._source: np.array([10.0, 20.0])}) == 33.0
    assert graph.replay(x._source, {x._source: x.data}) is x.data
    x.data[0] = 5.0
    with pytest.raises(GraphError, match="changed in place"):
        graph.replay(y._source, {})


def test_an_ignored_row_that_is_not_finite_has_no_second_derivative_either():
    scores = np.array([[0.5, -1.0, 2.0], [np.nan, np.inf, 0.0], [1.0, 0.3, -0.2]])

    def curvature(z, target):
        x = tn.tensor(z, requires_grad=True)
        (g,) = tn.grad(F.cross_entropy(x, target, reduction="sum"), x, create_graph=True)
        return tn.grad((g * g).sum(), x)[0].numpy()

    found = curvature(scores, [0, -100, 2])
    np.testing.assert_array_equal(found[1], 0.0)
    np.testing.assert_allclose(found[[0, 2]], curvature(scores[[0, 2]], [0, 2]), rtol=1e-14)


CUBE = np.array([0.5, -2.0, 1.5])
TURN = np.array([1.0, 0.25, -0.5])


@pytest.mark.parametrize(
    ("derivative", "expected"),
    [
        (lambda f, x, v: tn.jacobian(lambda u: tn.jacobian(f, u), x), np.diag(6 * CUBE)),
        (lambda f, x, v: tn.jacobian(lambda u: tn.grad(f(u), u)[0], x), np.diag(6 * CUBE)),
        (lambda f, x, v: tn.jacobian(lambda u: tn.vjp(f, u)[1], x), np.diag(6 * CUBE)),
        (lambda f, x, v: tn.jacobian(lambda u: tn.hvp(f, u, v)[1], x), np.diag(6 * TURN)),
        (lambda f, x, v: tn.jvp(lambda u: tn.jvp(f, u, v)[1], x, v)[1], (6 * CUBE * TURN**2).sum()),
        (lambda f, x, v: tn.jvp(lambda u: tn.vjp(f, u)[1], x, v)[1], 6 * CUBE * TURN),
        (lambda f, x, v: tn.vjp(lambda u: tn.jvp(f, u, v)[1], x)[1], 6 * CUBE * TURN),
        (lambda f, x, v: tn.vjp(lambda u: tn.hvp(f, u, v)[1], x, v)[1], 6 * TURN**2),
        (lambda f, x, v: tn.hvp(lambda u: tn.jvp(f, u, v)[1], x, v)[1], 6 * TURN**2),
    ],
)
def test_a_derivative_inside_of_a_differentiated_function_keeps_its_graph(derivative, expected):
    """Without create_graph its own derivative would be 0."""
    found = derivative(lambda u: (u**3).sum(), CUBE, TURN)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)
    assert not graph.is_differentiated()


@pytest.mark.parametrize("other", [lambda x: x[:1], lambda x: x > 0.0], ids=["shape", "kind"])
def test_a_cache_of_another_shape_or_kind_on_tensors_is_refused(other):
    @tn.op("two-faced")
    def two_faced(xp, x):
        return x * x, x if xp is np else other(x)

    two_faced.backward(lambda xp, dy, x: 2.0 * dy * x)
    x = leaf([1.0, 2.0])
    np.testing.assert_array_equal(tn.grad(two_faced(x).sum(), x)[0].numpy(), [2.0, 4.0])
    with pytest.raises(GraphError, match="two-faced cannot be differentiated again"):
        tn.grad(two_faced(x).sum(), x, create_graph=True)
