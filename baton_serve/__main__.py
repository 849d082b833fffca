"""``python -m baton_serve``, and the command ``baton``."""

import importlib.util
import sys

from baton_serve.baton.safe_path import forget_current_directory

#: A package of the extra ``router``. The wheel alone does not bring it: vLLM's environment has the connector only.
PACKAGE = "click"


def main() -> int:
    """The command line; returns the exit code."""
    forget_current_directory()
    if importlib.util.find_spec(PACKAGE) is None:
        missing = "the command line needs packages that are not installed"
        print(f"baton: {missing}: pip install 'baton-serve[router]'", file=sys.stderr)
        return 1
    from baton_serve.baton import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
