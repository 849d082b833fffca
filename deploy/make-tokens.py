"""Write the secrets of a deployment into one directory for each service, unless they are there already.

``make-tokens DIRECTORY=NAME,NAME,... ...``: each directory gets the named secrets and no other. A name has the same
value in all directories. ``redis.conf`` has the password of Redis once more, in the form that its server reads.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

NAMES = ("internal-token", "admin-token", "api-keys", "redis-password", "redis.conf")


def main(wanted: dict[Path, list[str]]) -> None:
    """Write the files: each appears complete or not at all, and only its owner can read it. Raises OSError."""
    values: dict[str, str] = {}
    for name in NAMES:
        directories = [directory for directory, names in wanted.items() if name in names]
        values[name] = next(filter(None, map(_read, (directory / name for directory in directories))), "") or _new(
            name, values
        )
        for directory in directories:
            _write(directory / name, values[name])


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _new(name: str, values: dict[str, str]) -> str:
    return f"requirepass {values['redis-password']}" if name == "redis.conf" else secrets.token_urlsafe(32)


def _write(path: Path, value: str) -> None:
    if path.exists():
        return
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as file:
        file.write(value + "\n")
    draft.rename(path)


def parse(arguments: list[str]) -> dict[Path, list[str]]:
    """The names by directory. Raises SystemExit for a name that does not exist."""
    wanted = {}
    for argument in arguments:
        directory, _, names = argument.partition("=")
        wanted[Path(directory)] = names.split(",")
        unknown = set(names.split(",")) - set(NAMES)
        if unknown:
            sys.exit(f"make-tokens: unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    return wanted


if __name__ == "__main__":
    if os.environ.get("BATON_API_KEYS"):
        # Earlier versions read this variable, which docker inspect shows. To ignore it now would open /v1 to everyone.
        sys.exit(
            "make-tokens: BATON_API_KEYS is not read any more: write the keys into a file, one a line, mount it as "
            "/run/baton/api-keys of the router, and set BATON_API_KEYS_FILE=/run/baton/api-keys instead"
        )
    main(parse(sys.argv[1:]))
