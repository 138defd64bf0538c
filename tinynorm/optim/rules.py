"""The update rules as pure formulas: parameter, gradient and state in, new parameter and new state out.

As in `tinynorm.formulas`, the array module comes first, nothing that came in is written to, and all options are Python
floats, which never widen an array's dtype. In the docstrings p is the parameter, g its gradient and λ the weight decay.

The code takes its sums apart, m = β₁ m and then m += …, because adding in place to an array of its own saves a new one:
for large parameters, most of a step's time goes into memory that is fresh.
"""

from ..formulas.types import Array, Namespace


def sgd(xp: Namespace, p: Array, g: Array, *, lr: float, weight_decay: float) -> Array:
    """g ← g + λ p ;   p ← p − lr g

    >>> import numpy as np
    >>> sgd(np, np.array([1.0, 2.0]), np.array([1.0, 0.0]), lr=0.5, weight_decay=0.5)
    array([0.25, 1.5 ])
    """
    return p - lr * _with_decay(p, g, weight_decay)


def sgd_momentum(
    xp: Namespace, p: Array, g: Array, v: Array, *, lr: float, momentum: float, nesterov: bool, weight_decay: float
) -> tuple[Array, Array]:
    """g ← g + λ p ;   v ← μ v + g ;   p ← p − lr v, or with Nesterov p ← p − lr (g + μ v)

    v starts at 0, so that the first v is g. Returns p and v.

    Source: Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), in PyTorch's
    convention: the paper's velocity holds the learning rate (v ← μ v − lr g), this one does not, so that a change of lr
    acts at once. With Nesterov, p is the paper's point ahead, θ + μ v, where the gradient is taken.

    >>> import numpy as np
    >>> p, v = np.array([1.0]), np.array([0.0])
    >>> for _ in range(2):
    ...     p, v = sgd_momentum(np, p, np.array([1.0]), v, lr=0.5, momentum=0.5, nesterov=False, weight_decay=0.0)
    >>> p, v
    (array([-0.25]), array([1.5]))
    """
    g = _with_decay(p, g, weight_decay)
    v = momentum * v
    v += g
    return p - lr * (g + momentum * v if nesterov else v), v


def adam(
    xp: Namespace,
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    t: int,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> tuple[Array, Array, Array]:
    """m ← β₁ m + (1 − β₁) g ,   v ← β₂ v + (1 − β₂) g² ,   p ← p − lr m̂ / (√v̂ + ε)

    where g ← g + λ p comes first, m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ). The moments m and v start at 0 and t at 1;
    the hats undo the pull of that zero. ε stands outside the root and is not corrected. Returns p, m and v.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), Algorithm 1, in the order of the end of
    their section 2, which puts both corrections in one factor: numerator and denominator are multiplied by √(1 − β₂ᵗ).

    >>> import numpy as np
    >>> one, zero = np.array([1.0]), np.array([0.0])
    >>> adam(np, one, 8.0 * one, zero, zero, 1, lr=0.5, betas=(0.5, 0.75), eps=0.0, weight_decay=0.0)
    (array([0.5]), array([4.]), array([16.]))
    """
    beta1, beta2 = betas
    part = (1.0 - beta1) * _with_decay(p, g, weight_decay)
    m = beta1 * m
    m += part
    part *= (1.0 - beta2) ** 0.5 / (1.0 - beta1)  # √(1 − β₂) g
    part *= part
    v = beta2 * v
    v += part
    unbiased = (1.0 - beta2**t) ** 0.5
    root = xp.sqrt(v)
    root += eps * unbiased  # (√v̂ + ε) √(1 − β₂ᵗ)
    step = m / root
    step *= lr * unbiased / (1.0 - beta1**t)  # lr m̂ / (√v̂ + ε)
    return p - step, m, v


def adamw(
    xp: Namespace,
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    t: int,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> tuple[Array, Array, Array]:
    """p ← p (1 − lr λ), then a step of `adam` without decay: the moments never see λ. Returns p, m and v.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), Algorithm 2. As in PyTorch, the decay
    is scaled by lr; the paper scales it by the schedule alone, so its λ is lr times the one here.

    >>> import numpy as np
    >>> one, zero = np.array([1.0]), np.array([0.0])
    >>> adamw(np, one, 8.0 * one, zero, zero, 1, lr=0.5, betas=(0.5, 0.75), eps=0.0, weight_decay=0.5)
    (array([0.25]), array([4.]), array([16.]))
    """
    return adam(xp, p * (1.0 - lr * weight_decay), g, m, v, t, lr=lr, betas=betas, eps=eps, weight_decay=0.0)


def _with_decay(p: Array, g: Array, weight_decay: float) -> Array:
    """g + λ p, the gradient of ℒ + ½ λ ‖p‖²"""
    return g + weight_decay * p if weight_decay else g
