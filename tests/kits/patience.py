"""How long tests wait for what must happen."""

from __future__ import annotations

#: Seconds. Every wait ends with what it waits for, so a test that passes does not take longer for it. Twenty programs
#: that share two cores make seconds of what takes milliseconds. Below the limit of a whole test in pyproject.toml.
PATIENCE_S = 100.0
