"""Looking inside: each operation of a computation, a picture of its graph, the scales from layer to layer.

None of these changes what it looks at: no leaf gets a gradient, no graph is freed, nothing is run twice that draws
random numbers.
"""

from .draw import Drawing, draw
from .explain import explain
from .scales import Scale, scales
from .table import Explanation, Operation

__all__ = ["Drawing", "Explanation", "Operation", "Scale", "draw", "explain", "scales"]
