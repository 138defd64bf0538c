"""Step 6 of 6. One formula, run on everything: the library's idea in miniature.

    python examples/steps/step6_any_order.py

A formula asks its array module for what it needs, and its numbers for nothing else. So it runs on floats, on complex
numbers, and where tensors have an array module of their own, on tensors. Then the forward's cache has a history, the
backward is recorded like all else, and can be differentiated again: no derivative needs a second formula.

What to look for: four derivatives of a norm, all of them from the two lines of `rms_norm_backward`.
"""

from types import SimpleNamespace

import numpy as np
from step2_tape import tape
from step4_pairs import multiply, multiply_backward, power, power_backward


class Tensor:
    """An array, and how it was made."""

    __array_ufunc__ = None  # array * tensor is the tensor's business

    def __init__(self, array, op=None, inputs=(), options=None, cache=None):
        self.array, self.op, self.inputs, self.options, self.cache = array, op, inputs, options, cache
        self.shape, self.ndim = array.shape, array.ndim
        self.depth = 1 + max((x.depth for x in inputs), default=-1)

    __add__ = __radd__ = lambda self, other: ADD(self, other)
    __mul__ = __rmul__ = lambda self, other: MULTIPLY(self, other)
    __pow__, __sub__, __rtruediv__ = (
        lambda self, n: POWER(self, n=n),
        lambda self, other: self + other * -1.0,
        lambda self, other: self**-1.0 * other,
    )


class Op:
    """A forward and a backward."""

    def __init__(self, forward, backward):
        self.forward, self.backward = forward, backward

    def __call__(self, *inputs, **options):
        """Run the forward on arrays, and remember."""
        inputs = [x if isinstance(x, Tensor) else Tensor(np.asarray(x)) for x in inputs]
        y, cache = self.forward(np, *[x.array for x in inputs], **options)
        return Tensor(y, self, inputs, options, cache)


def rms_norm(xp, x, g, *, eps):
    """y = g ⊙ h,   h = r x,   r = (mean(x²) + ε)^(−1/2)"""
    r = 1.0 / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + eps)
    h = x * r
    return h * g, (h, r, g)


def rms_norm_backward(xp, dy, cache):
    """h̄ = ȳ g ;   x̄ = r (h̄ − h · mean(h̄ h)) ;   ḡ = Σ_rows ȳ h"""
    h, r, g = cache
    dh = dy * g
    return r * (dh - h * xp.mean(dh * h, axis=-1, keepdims=True)), dy * h


# Where the pair is a line each, it is written as one. What was stretched, `fit` sums.
ADD = Op(lambda xp, a, b: (a + b, None), lambda xp, dy, cache: (dy, dy))
MULTIPLY, POWER, RMS_NORM = Op(multiply, multiply_backward), Op(power, power_backward), Op(rms_norm, rms_norm_backward)
STRETCH = Op(lambda xp, a, shape: (xp.broadcast_to(a, shape), None), lambda xp, dy, cache: (dy,))
RESHAPE = Op(lambda xp, a, shape: (xp.reshape(a, shape), a.shape), lambda xp, dy, was: (xp.reshape(dy, was),))
SUM = Op(
    lambda xp, a, axis: (xp.sum(a, axis=axis, keepdims=True), a.shape), lambda xp, dy, n: (xp.broadcast_to(dy, n),)
)
tensors = SimpleNamespace(  # the array module of tensors
    sqrt=lambda a: a**0.5,
    sum=lambda a, axis, keepdims: SUM(a, axis=axis),
    mean=lambda a, axis, keepdims: SUM(a, axis=axis) * (1.0 / a.shape[axis]),
    reshape=lambda a, shape: RESHAPE(a, shape=shape),
    broadcast_to=lambda a, shape: STRETCH(a, shape=shape),
)


def grad(y, x, dy):
    """Σ dy ∂y/∂x: plain numbers if dy is an array; a tensor, to be differentiated again, if dy is one."""
    cotangents = {y: dy}
    for t in tape(y):
        if t.op:
            xp, cache = np, t.cache
            if isinstance(dy, Tensor):
                xp, cache = tensors, t.op.forward(tensors, *t.inputs, **t.options)[1]
            for source, gradient in zip(t.inputs, t.op.backward(xp, cotangents.pop(t), cache), strict=True):
                lead = gradient.ndim - source.ndim
                axes = tuple(i for i in range(gradient.ndim) if i < lead or source.shape[i - lead] != gradient.shape[i])
                gradient = xp.reshape(xp.sum(gradient, axis=axes, keepdims=True), source.shape)
                cotangents[source] = cotangents[source] + gradient if source in cotangents else gradient
    return cotangents[x]


def main():
    """Four derivatives of one number's norm; and a row's Hessian against the complex step."""
    eps, x = 0.5, Tensor(np.array([0.7]))
    v, u = 0.7, 0.7 * 0.7 + eps
    first, second, third = eps * u**-1.5, -3 * eps * v * u**-2.5, 3 * eps * (4 * v * v - eps) * u**-3.5
    by_hand = first, second, third, 15 * eps * v * (3 * eps - 4 * v * v) * u**-4.5
    y = RMS_NORM(x, Tensor(np.ones(1)), eps=eps)
    for order, expected in enumerate(by_hand, 1):
        y = grad(y, x, Tensor(np.ones(1)))
        print(f"derivative {order} of x / √(x² + ε): {y.array[0]:10.6f}, by hand {expected:10.6f}")
        assert abs(y.array[0] - expected) < 1e-13

    row, g, dy, along = np.random.default_rng(0).normal(size=(4, 5))
    x = Tensor(row)
    slope = grad(RMS_NORM(x, Tensor(g), eps=eps), x, Tensor(dy))
    _, cache = rms_norm(np, row + 1e-30j * along, g, eps=eps)  # the same formulas, on complex numbers
    error = abs(grad(slope, x, along) - rms_norm_backward(np, dy, cache)[0].imag / 1e-30).max()
    print(f"the Hessian of a row's norm, along a direction, differs from the complex step by {error:.0e}")
    assert error < 1e-14


if __name__ == "__main__":
    main()
