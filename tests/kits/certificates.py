"""Certificates, made by the commands of docs/security.md."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

COMMANDS = next(
    block
    for block in re.findall(
        r"^```sh\n(.*?)^```", (Path(__file__).parents[2] / "docs" / "security.md").read_text(), re.DOTALL | re.MULTILINE
    )
    if block.startswith("openssl req -x509")
)


@dataclass(frozen=True)
class Certified:
    """A certificate and its key, and the CA that others are to have."""

    certificate: Path
    key: Path
    ca: Path

    @property
    def internal(self) -> dict[str, str]:
        """As settings of TLS between processes."""
        return {
            "internal_tls_certificate_file": str(self.certificate),
            "internal_tls_key_file": str(self.key),
            "internal_ca_file": str(self.ca),
        }

    @property
    def public(self) -> dict[str, str]:
        """As settings of a router's public port."""
        return {"tls_certificate_file": str(self.certificate), "tls_key_file": str(self.key)}


class Authority:
    """A CA and what it has certified: router.internal, p1.internal and d1.internal, each for loopback too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.pem"
        done = subprocess.run(["bash", "-ec", COMMANDS], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def of(self, host: str) -> Certified:
        """What the machine of that name has."""
        return Certified(self.folder / f"{host}.pem", self.folder / f"{host}.key", self.ca)
