"""Kernels for CuPy's arrays, in CUDA C++: each .cu file beside the Python that launches it.

As everywhere in `kernels`, the readable formulas are the specification, and an operation whose arrays do not suit, or
that runs inside of ``with tn.formulas_only():``, runs them instead, as plain CuPy.
"""
