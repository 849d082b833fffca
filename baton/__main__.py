"""``python -m baton``, and the command ``baton``."""

import sys

from baton.safe_path import forget_current_directory


def main() -> int:
    """The command line; returns the exit code."""
    forget_current_directory()
    from baton import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
