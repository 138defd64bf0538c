"""A process that measures: ``python -m benchmarks.worker GROUP``, started by `processes` with a clean environment.

It prints a line of JSON for its setting, and one for each row.
"""

import json
import signal
from argparse import ArgumentParser
from typing import Any

from .setting import describe, devices, pin


def main() -> None:
    """Pin the cores, then import what would count them, and measure."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word; whoever started it has them
    parser = ArgumentParser(prog="python -m benchmarks.worker", description=__doc__)
    parser.add_argument("group")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer", default="", help="a library to load beside tinynorm")
    parser.add_argument("--only", default="", help="the one contestant whose memory is measured")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    cores = pin(given.threads)
    from . import contestants, measures

    if given.only:
        made = [contestants.named(given.only)]
    else:
        made = contestants.on_gpu(given.peer) if given.group == "gpu" else contestants.all_of(given.peer)
    for contestant in made:
        contestant.threads(given.threads)
    measure = measures.GROUPS[given.group]
    setting = describe(list(dict.fromkeys(c.package for c in made if hasattr(c, "package"))))
    about = devices() if given.group == "gpu" else []
    show({"setting": {**setting, "threads": given.threads, "cores": cores, "gpu": about}})
    for row in measure(made, given.threads, given.quick):
        show({"row": row})


def show(line: dict[str, Any]) -> None:
    """One line of JSON, at once."""
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
