"""A step of Adam or AdamW for many parameters on a device, in one launch.

The rule is `rules.adam` and `rules.adamw` of `tinynorm.optim`, operation by operation, to the same bits as plain CuPy.
There each parameter takes 14 launches, which together read 18 numbers per element and write 14. Here a step reads p, g,
m and v and writes p, m and v: 7 numbers per element, the least there can be, and what a launch costs is paid once.

Nothing is gathered for this in one array. Gradients are new arrays after every backward, and parameters are the user's;
so the kernel reaches each by its address. Where parameters and moments lie is known to the device from the first step
on, and where the gradients lie, too, if they lie where they lay.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...backend import namespace
from ...formulas.types import Array
from .launch import TYPES, function

CHUNK = 4096  #: elements that a block moves: enough for its loads to hide that it looked into two tables first
THREADS = 256  #: of a block; each moves four packs of 16 bytes


class Tables:
    """What the kernel needs to know of parameters, and of moments of their shapes, that stay where they are.

    All arrays are in C order, on the current device. A parameter that is float16 has moments that are float32.
    """

    def __init__(self, p: Sequence[Array], m: Sequence[Array], v: Sequence[Array]) -> None:
        xp, self.dtype = namespace(p[0]), m[0].dtype
        definitions = {"X": TYPES[p[0].dtype.char], "CHUNK": CHUNK, "THREADS": THREADS}
        self.kernel = function("adamw.cu", "adam", "-fmad=false", **definitions)
        self.kernel.compile()  # now, as a step that has begun must not fail
        sizes = np.array([array.size for array in p], np.int64)
        members = np.stack([*map(_addresses, (p, m, v)), sizes], axis=1)
        chunks = [(i, k) for i, size in enumerate(sizes) for k in range(-(-size // CHUNK))]
        self.members, self.chunks = xp.asarray(members), xp.asarray(np.array(chunks, np.int32).reshape(-1, 2))
        self.gradients, self.sent = None, np.zeros(0)  # the last step's table on the device, and what it holds

    def prepared(
        self, g: Sequence[Array], places: Sequence[int], constants: Sequence[Sequence[float]]
    ) -> Callable[[], None]:
        """A step, with all that it needs on the device: a call makes it, and allocates nothing.

        Args:
            g: the gradients.
            places: for each parameter, which of the constants are its.
            constants: what the rule multiplies by and adds, in the order of `Constants` in adamw.cu.
        """
        xp = namespace(g[0])
        g = [xp.ascontiguousarray(array) for array in g]
        gradients = np.stack([_addresses(g), np.array(places, np.int64)], axis=1)
        if not np.array_equal(gradients, self.sent):
            self.gradients, self.sent = xp.asarray(gradients), gradients
        arguments = (self.members, self.chunks, self.gradients, xp.asarray(np.array(constants, self.dtype)))

        def launch(held: Any = g) -> None:  # an address alone would not keep a gradient until then
            if self.chunks.size:
                self.kernel((len(self.chunks),), (THREADS,), arguments)

        return launch


def _addresses(arrays: Sequence[Array]) -> Array:
    return np.array([array.data.ptr for array in arrays], np.int64)
