"""Looking inside: each operation of a computation, a picture of its graph, the scales from layer to layer.

None of these changes what it looks at: no leaf gets a gradient, no graph is freed, nothing is run twice that draws
random numbers.
"""

from .draw import draw
from .explain import explain
from .scales import scales

__all__ = ["draw", "explain", "scales"]
