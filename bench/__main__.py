"""``python -m bench``: see bench/performance/command.py."""

import sys

from bench.performance.command import main

if __name__ == "__main__":
    sys.exit(main())
