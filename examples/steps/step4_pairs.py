"""Step 4 of 6. An operation is a pair of pure functions.

    python examples/steps/step4_pairs.py

Until here the mathematics was hidden in a class of tensors. Now each operation is a forward beside a backward, and the
tensor knows neither. The forward gives the result and a cache, which is all that the backward will get besides the
cotangent. Both name their array module, `xp`, so that they stand alone: they can be read beside a paper, and run on
other numbers, without an engine.

What to look for: an RMSNorm whose backward was derived by hand, beside the same norm composed of small operations: the
same gradients, with one entry on the tape in place of five. And the complex step: the forward, on numbers with a tiny
imaginary part, gives the gradient to the last digit, by a road that the backward knows nothing of.
"""

import numpy as np
from step2_tape import tape
from step3_arrays import fit


def multiply(xp, a, b):
    """y = a b"""
    return a * b, (a, b)


def multiply_backward(xp, dy, cache):
    """ā = ȳ b ;   b̄ = ȳ a"""
    a, b = cache
    return dy * b, dy * a


def power(xp, a, *, n):
    """y = aⁿ"""
    return a**n, (a, n)


def power_backward(xp, dy, cache):
    """ā = n ȳ aⁿ⁻¹"""
    a, n = cache
    return (dy * n * a ** (n - 1),)


def mean(xp, a):
    """y = Σ a / D, over each row"""
    return xp.mean(a, axis=-1, keepdims=True), a.shape


def mean_backward(xp, dy, shape):
    """ā = ȳ / D"""
    return (xp.broadcast_to(dy / shape[-1], shape),)


def rms_norm(xp, x, g):
    """y = g ⊙ h,   h = r x,   r = mean(x²)^(−1/2)"""
    r = 1.0 / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True))
    h = x * r
    return h * g, (h, r, g)


def rms_norm_backward(xp, dy, cache):
    """h̄ = ȳ g ;   x̄ = r (h̄ − h · mean(h̄ h)) ;   ḡ = Σ_rows ȳ h"""
    h, r, g = cache
    dh = dy * g
    return r * (dh - h * xp.mean(dh * h, axis=-1, keepdims=True)), dy * h


class Tensor:
    """An array, and how it was made: by which backward, with which cache, from what."""

    def __init__(self, array, inputs=(), backward=None, cache=None):
        self.array, self.inputs, self.pull_back, self.cache = array, inputs, backward, cache
        self.depth = 1 + max((x.depth for x in inputs), default=-1)


def apply(forward, backward, *inputs, **options):
    """Run the forward, and remember the backward: the one way into the tape."""
    y, cache = forward(np, *[t.array for t in inputs], **options)
    return Tensor(y, inputs, backward, cache)


def backward(root, cotangent):
    """Step 3's walk. All entries of the tape look alike now; it returns how many there are."""
    cotangents, order = {root: cotangent}, tape(root)
    for y in order:
        dy = y.grad = cotangents.pop(y)
        if y.inputs:
            for x, dx in zip(y.inputs, y.pull_back(np, dy, y.cache), strict=True):
                cotangents[x] = cotangents.get(x, 0.0) + fit(dx, x.array.shape)
    return sum(1 for t in order if t.inputs)


def composed(x, g):
    """The same norm, of operations that know nothing of norms."""
    r = apply(power, power_backward, apply(mean, mean_backward, apply(power, power_backward, x, n=2)), n=-0.5)
    return apply(multiply, multiply_backward, apply(multiply, multiply_backward, x, r), g)


def main():
    """One norm, two tapes, and the complex step."""
    rng = np.random.default_rng(0)
    x, g, dy = rng.normal(size=(5, 4)), rng.normal(size=4), rng.normal(size=(5, 4))
    gradients = []
    for name, norm in (("composed", composed), ("by hand", lambda *t: apply(rms_norm, rms_norm_backward, *t))):
        leaves = Tensor(x), Tensor(g)
        print(f"{name:<9} {backward(norm(*leaves), dy)} on the tape")
        gradients.append(leaves[0].grad)
    exact = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        z = x.astype(complex)
        z[i] += 1e-30j
        exact[i] = (dy * rms_norm(np, z, g)[0].imag).sum() / 1e-30  # f(x + ih) = f(x) + ih f′(x) + …
    for name, gradient in zip(("composed", "by hand"), gradients, strict=True):
        print(f"{name:<9} differs from the complex step by {abs(gradient - exact).max():.0e}")
        assert abs(gradient - exact).max() < 1e-14


if __name__ == "__main__":
    main()
