"""A file that is replaced whole or not at all, whatever happens in between.

The bytes go to a temporary file in the same directory, then to the disk (fsync), and only then does the new file take
the old one's name, which the system does in one step. So a kill or a power cut at any moment leaves one of the two.

A killed process leaves its temporary file. The next save removes it: each writer holds a lock on its own, and a file
that nobody holds is left over. (Windows removes no file that is open, which comes to the same.)
"""

import errno
import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ..errors import ArgumentError

if sys.platform != "win32":
    import fcntl

PREFIX, SUFFIX = ".tinynorm-", ".tmp"


def replace(path: Path, content: bytes) -> None:
    """Make the content that of the file. An existing file's permissions stay; a link stays, and what it names changes.

    Raises:
        ArgumentError: for a directory, a device, or anything else that is no file.
        OSError: whatever the system says, with the path. The old file is as it was, and no other is left behind.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = _mode(target)
        _remove_leftovers(target.parent)
        temporary = target.with_name(f"{PREFIX}{secrets.token_hex(8)}{SUFFIX}")
        try:
            while not _replaced(target, temporary, content, mode):
                continue
        except BaseException:
            with suppress(FileNotFoundError):
                temporary.unlink()
            raise
        _sync_directory(target.parent)
    except OSError as error:
        # By the path: a full disk has no name, and that of the temporary file says little.
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _mode(target: Path) -> int | None:
    """The permissions of the file that is there; None where there is none."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "no regular file"
        raise ArgumentError(f"save: {target} is {kind}; give the path of a file")
    if not os.access(target, os.W_OK):  # to replace it, the directory's permission would do
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    return stat.S_IMODE(mode)


def _replaced(target: Path, temporary: Path, content: bytes, mode: int | None) -> bool:
    """Whether the new file stands. False where another process took the temporary one for left over."""
    with open(temporary, "xb") as file:
        _lock(file)
        if os.fstat(file.fileno()).st_nlink == 0:
            return False
        file.write(content)
        file.flush()
        if mode is not None:
            os.chmod(temporary, mode)
        os.fsync(file.fileno())
        if sys.platform != "win32":  # while the lock is held
            os.replace(temporary, target)
    if sys.platform == "win32":  # Windows renames no open file
        os.replace(temporary, target)
    return True


def _lock(file: BinaryIO) -> None:
    """Hold the file until it is closed. Some network file systems have no locks, and their leftovers stay."""
    if sys.platform != "win32":
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)


def _remove_leftovers(directory: Path) -> None:
    """Remove what killed processes left. What cannot be removed stays: a save does not fail for it."""
    for path in directory.glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):
            if sys.platform == "win32":
                path.unlink()
                continue
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error where its writer lives
                path.unlink()


def _sync_directory(directory: Path) -> None:
    """Bring the new name to the disk as well."""
    if sys.platform == "win32":  # opens no directory
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
