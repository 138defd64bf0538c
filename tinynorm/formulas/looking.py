"""Whether some numbers need mending, where that can be found out at no cost.

A formula that is right for all but a few numbers looks whether there are any of these, and mends them if so. What is on
a device cannot be looked at without waiting until all that was asked of the device is done. There the mending is done
in any case; it leaves alone, by `where`, whatever is right already.
"""

from .types import Array, Namespace


def some(xp: Namespace, condition: Array) -> bool:
    """Whether any is true; on a device always yes. A number has no device, and what NumPy has lies on "cpu"."""
    return getattr(condition, "device", "cpu") != "cpu" or bool(xp.any(condition))
