"""``python -m tests.faults.model --faults 2``: search, print what was searched, and a trace if something is wrong."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields

from tests.faults.model.scope import Scope, Variant
from tests.faults.model.search import search

HELP = {
    "requests": "requests, all there from the start",
    "prefill_workers": "P",
    "decode_workers": "D",
    "blocks": "blocks of each P",
    "blocks_per_request": "blocks that a request takes of them",
    "ranks": "ranks of each D",
    "seats": "sequences that have blocks on a D at the same time",
    "prefills": "prefills that the router tries for one request",
    "decodes": "decodes that it tries for one prefill",
    "faults": "crashes, losses and the like on one way; the search grows fast with them",
}
STATUSES = "Exit status 0: nothing is wrong in any state. 1: something is. 2: there were more states than allowed."


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status, see ``STATUSES``."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.model", description=__doc__, epilog=STATUSES)
    for one in fields(Scope):
        if one.name != "variant":
            flag = f"--{one.name.replace('_', '-')}"
            parser.add_argument(flag, type=int, default=one.default, help=f"{HELP[one.name]} (%(default)s)")
    parser.add_argument("--variant", type=Variant, choices=list(Variant), help="a known-bad protocol, to be found out")
    parser.add_argument("--max-states", type=int, help="stop when there are more")
    options = vars(parser.parse_args(arguments))
    max_states = options.pop("max_states")
    try:
        scope = Scope(**options)
    except ValueError as error:
        parser.error(str(error))
    found = search(scope, max_states)
    print(scope)
    print(found)
    if found.finding is not None:
        print(found.finding)
        return 1
    return 0 if found.is_whole else 2


if __name__ == "__main__":
    sys.exit(main())
