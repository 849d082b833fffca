"""``python -m bench.router``: see bench/router/command.py."""

import sys

from bench.router.command import main

if __name__ == "__main__":
    sys.exit(main())
