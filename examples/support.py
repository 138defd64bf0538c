"""What the examples share: the digits, some of the command line, and how a script ends."""

import argparse
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tinynorm as tn
from tinynorm.extras import optional


class Split(NamedTuple):
    """Images as rows of float32 from 0 to 1, labels as int64, and the part that is never trained on."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def digits(rng: np.random.Generator) -> Split:
    """The UCI digits, 1,797 handwritten 8×8 images; a random fifth is held out."""
    x, y = optional("sklearn.datasets", "examples").load_digits(return_X_y=True)
    x, y = (x / 16.0).astype(np.float32), y.astype(np.int64)
    order = rng.permutation(len(x))
    held_out, kept = order[: len(x) // 5], order[len(x) // 5 :]
    return Split(x[kept], y[kept], x[held_out], y[held_out])


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: an integer from `least` up."""

    def integer(text: str) -> int:
        if not text.lstrip("+-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be an integer >= {least}, not {text!r}")
        return int(text)

    return integer


def picture_file(text: str) -> str:
    """An argparse type: where a picture can be written, known before the work instead of after it."""
    kinds = optional("matplotlib.figure", "examples").Figure().canvas.get_supported_filetypes()
    file = Path(text)
    if file.suffix.removeprefix(".").lower() not in kinds:
        raise argparse.ArgumentTypeError(f"{text!r} must end in a picture's suffix, one of {', '.join(sorted(kinds))}")
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {str(file.parent)!r} to write {file.name!r} into")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written to")
    return text


def run(main: Callable[[], None]) -> None:
    """Run a script's main function.

    What the user can mend ends in one sentence and exit status 2, not a traceback; training that has failed, with 1.
    """
    mendable = (
        tn.errors.ArgumentError,
        tn.errors.DataError,
        tn.errors.DeviceError,
        tn.errors.MissingExtraError,
        OSError,
    )
    if isinstance(sys.stdout, TextIOWrapper):  # signs such as √, which not every terminal can show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # The matrices are small: a second BLAS thread gains nothing, and costs much where another program is at work.
        with optional("threadpoolctl", "examples").threadpool_limits(1, user_api="blas"):
            main()
    except (*mendable, tn.errors.DivergedError) as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, mendable) else 1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
