"""What g++ has compiled, kept on disk under the hash of all that went into it.

The directory is ``TINYNORM_CUPY_ON_CPU_CACHE``, or ``tinynorm-cupy-on-cpu`` in the user's cache. Processes may share
it: a file appears whole, under its last name, or not at all.
"""

import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

GXX = "g++"


@functools.cache
def directory() -> Path:
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    chosen = Path(os.environ.get("TINYNORM_CUPY_ON_CPU_CACHE") or Path(user) / "tinynorm-cupy-on-cpu")
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen


@functools.cache
def compiler_version() -> str:
    return subprocess.run([GXX, "--version"], capture_output=True, text=True, check=True).stdout


def key(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, (compiler_version(), *parts))).encode()).hexdigest()[:24]


def made(name: str, make: Callable[[Path], None]) -> Path:
    """The file of this name, made first where it is missing: ``make(path)`` writes it."""
    path = directory() / name
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=directory()) as scratch:
            draft = Path(scratch) / path.name
            make(draft)
            os.replace(draft, path)
    return path


def compiled(name: str, flags: Iterable[str], sources: Iterable[Path], headers: Iterable[Path] = ()) -> Path:
    """The shared library that g++ makes of the sources, which include the headers."""
    sources, flags = tuple(sources), tuple(flags)
    texts = [file.read_text(encoding="utf-8") for file in (*sources, *headers)]

    def make(path: Path) -> None:
        subprocess.run([GXX, *flags, *sources, "-o", path], check=True)

    return made(f"{name}-{key(*flags, *texts)}.so", make)
