"""What an extra of Baton requires, and what pip would change for it where certain packages are installed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: What vLLM brings; ``vllm_packages.py`` beside it says how the list is made.
RECORDED: dict[str, Any] = json.loads((ROOT / "deploy" / "vllm_packages.json").read_text())
REDIS_CLIENT = "redis"


def requirements(extra: str, python: str) -> list[Requirement]:
    """What ``baton-serve[extra]`` requires on Linux with this Python, for instance ``3.11``."""
    lines = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]
    environment = {"python_version": python, "python_full_version": f"{python}.9", "extra": ""}
    found: list[Requirement] = []
    for requirement in map(Requirement, lines):
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        if requirement.name == PROJECT["name"]:
            found += [one for other in requirement.extras for one in requirements(other, python)]
        else:
            found.append(requirement)
    return found


def changes(wanted: Iterable[Requirement], packages: Mapping[str, str]) -> set[str]:
    """The packages that pip would add, or install in another version."""
    return {name for one in wanted if not _is_met(one, packages.get(name := canonicalize_name(one.name)))}


def _is_met(requirement: Requirement, version: str | None) -> bool:
    return version is not None and requirement.specifier.contains(version, prereleases=True)
