"""Write the internal and the admin token into a directory, unless they are there already: ``make-tokens DIRECTORY``."""

import os
import secrets
import sys
from pathlib import Path

NAMES = ("internal-token", "admin-token")


def main(directory: Path) -> None:
    """Each file appears complete or not at all, readable by its owner only."""
    for name in NAMES:
        path = directory / name
        if path.exists():
            continue
        draft = directory / f".{name}"
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        draft.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
