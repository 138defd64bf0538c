"""The command line: ``python -m tinynorm``."""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

from . import __version__, bench, info
from .errors import TinynormError
from .testing import command

PROGRAM = "python -m tinynorm"


class Parser(ArgumentParser):
    """One that says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Print the message and leave with status 2."""
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help says what there is\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. The arguments are those of the command line, unless given.

    Returns:
        the exit status: 0; 1 where something falls short; 2 for a command that was misspelt; 130 after Ctrl-C.
    """
    parser = Parser(PROGRAM, description="tinynorm: tensors, autograd and norms from scratch.")
    parser.add_argument("--version", action="version", version=f"tinynorm {__version__}")
    commands = parser.add_subparsers(metavar="command")
    if isinstance(sys.stdout, TextIOWrapper):  # messages hold signs such as ±, which not every terminal can show
        sys.stdout.reconfigure(errors="backslashreplace")
    command.add_to(commands)
    bench.add_to(commands)
    info.add_to(commands)
    given = parser.parse_args(arguments)
    if not hasattr(given, "run"):
        parser.print_help()
        return 0
    try:
        return int(given.run(given, __version__))
    except TinynormError as error:
        print(f"{PROGRAM} {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{PROGRAM}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever was reading has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
