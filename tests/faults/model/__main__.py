"""``python -m tests.faults.model --faults 2``: search, print what was searched, and a trace if something is wrong."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields

from tests.faults.model.scope import Scope, Variant
from tests.faults.model.search import search


def main(arguments: list[str] | None = None) -> int:
    """0: nothing is wrong in any state. 1: something is. 2: there were more states than allowed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.model", description=__doc__)
    for one in fields(Scope):
        if one.name != "variant":
            parser.add_argument(f"--{one.name.replace('_', '-')}", type=int, default=one.default)
    parser.add_argument("--variant", type=Variant, choices=list(Variant), help="a known-bad protocol, to be found out")
    parser.add_argument("--max-states", type=int, help="stop when there are more")
    options = vars(parser.parse_args(arguments))
    max_states = options.pop("max_states")
    scope = Scope(**options)
    found = search(scope, max_states)
    print(scope)
    print(found)
    if found.finding is not None:
        print(found.finding)
        return 1
    return 0 if found.is_whole else 2


if __name__ == "__main__":
    sys.exit(main())
