"""The mathematics: every operation as a pair of pure functions, forward beside backward.

A forward takes the array module first and returns the result and what its backward will need::

    y, cache = exp(xp, x)

A backward takes the cotangent ȳ = ∂ℒ/∂y and that cache, and returns one gradient per input (a lone input's gradient may
stand without its tuple)::

    x̄ = exp_backward(xp, dy, cache)

In the docstrings a bar marks a gradient: x̄ is ∂ℒ/∂x. The array module `xp` is NumPy, CuPy, or anything with the same
functions, and the inputs may be real, complex (for the complex step) or wider than usual (for references). That
works because a formula

- imports nothing of the library and no array module of its own,
- is analytic wherever the mathematics is: x·x, never abs(x)²; branches are chosen by comparing real parts,
- decides by numbers through `where` alone, and asks whether there are any to decide by through `looking.some`, since on
  a device an ``if`` would wait for them,
- writes to nothing that came in: inputs, cotangents (which may be stride-0 views) and caches,
- does not undo broadcasting: the engine sums each gradient to its input's shape, and does so in one place.

A formula that can save memory or work takes `needs`, one bool per input, false where nobody wants the gradient: the
forward as a keyword, the backward after its cache. What is not needed may be None, in the cache or as a gradient. A
cache is whatever the pair agrees on: arrays, numbers, None, and tuples, lists or dicts of them.

Reading order: looking, arithmetic, special, elementary, selection, summation, reductions, shaping, products, linear,
rescue, norms, rms_variants, activations, losses.
"""
