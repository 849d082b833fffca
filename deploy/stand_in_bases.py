"""Make stand-ins for the base images, on a machine that reaches Debian packages but no image registry.

``sudo python deploy/stand_in_bases.py`` takes the tags from Dockerfile and docker-compose.yml. An image that is not
here and cannot be pulled is made with debootstrap, under the same tag, from Debian's packages of the same program: of
nearly the same version, but not the same bytes. They are good for trials; remove the tags before you build images to
keep.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
SUITE = "bookworm"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

#: By repository: the packages of a stand-in, and the settings of its image. It has no package that the real image
#: lacks, because that would hide that something is missing.
PACKAGES = {
    "python": "python3,python3-dev,python3-venv,ca-certificates",
    "redis": "redis-server",
}
CHANGES = {
    "python": (f"ENV PIP_CERT={CERTIFICATES} SSL_CERT_FILE={CERTIFICATES}", 'CMD ["python"]'),
    "redis": ("USER redis", "WORKDIR /var/lib/redis", "EXPOSE 6379", 'CMD ["redis-server"]'),
}
#: Folders of a Debian system that no container needs.
LEFT_OUT = ("var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man", "usr/share/locale")


class StandInError(Exception):
    """There can be no stand-in. The message is one line."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    try:
        provide(parser.parse_args())
    except StandInError as error:
        print(f"stand_in_bases: {error}", file=sys.stderr)
        return 1
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--debian-mirror", help="a URL or a file:// of a Debian archive; default: debootstrap's own")
    parser.add_argument(
        "--certificates",
        type=Path,
        default=Path(os.environ.get("SSL_CERT_FILE", CERTIFICATES)),
        help="the authorities that the stand-in trusts, a PEM file; default: $SSL_CERT_FILE or this machine's",
    )


def provide(arguments: argparse.Namespace) -> None:
    """Pull or make every base image that is not here. Raises StandInError."""
    for image in base_images():
        if succeeds("docker", "image", "inspect", image):
            print(f"{image}: is here", flush=True)
        elif succeeds("docker", "pull", "--quiet", image):
            print(f"{image}: pulled", flush=True)
        else:
            check_tools(arguments)
            make(image, arguments)
            print(f"{image}: no registry has answered, made a stand-in", flush=True)


def base_images() -> list[str]:
    """The images that ours are built from, and Redis; without those of the monitoring."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?", dockerfile, re.MULTILINE)
    names = {name for _, name in stages}
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    pulled = [service["image"] for service in services if "build" not in service and "profiles" not in service]
    return list(dict.fromkeys([image for image, _ in stages if image not in names] + pulled))


def check_tools(arguments: argparse.Namespace) -> None:
    if os.geteuid() != 0:
        raise StandInError("debootstrap makes devices and owners, which only root may: run it with sudo")
    if not shutil.which("debootstrap"):
        raise StandInError("debootstrap is not installed (apt-get install debootstrap)")
    if not arguments.certificates.is_file():
        raise StandInError(f"there is no {arguments.certificates}: --certificates names a PEM file of authorities")


def make(image: str, arguments: argparse.Namespace) -> None:
    """Make a stand-in. Raises StandInError with the last line of the command that failed."""
    repository = image.partition(":")[0]
    if repository not in PACKAGES:
        raise StandInError(f"{image}: cannot be pulled, and there is no recipe for a stand-in")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES[repository]}", SUITE, str(root)]
        run([*command, *([arguments.debian_mirror] if arguments.debian_mirror else [])], f"{image}: debootstrap")
        for path in LEFT_OUT:
            shutil.rmtree(root / path, ignore_errors=True)
        (root / "var/log/apt").mkdir(parents=True)  # apt does not make it
        if repository == "python":
            finish_python(root, arguments.certificates)
        changes = [part for change in CHANGES[repository] for part in ("--change", change)]
        archive = root.with_suffix(".tar")
        run(["tar", "-C", str(root), "-cf", str(archive), "."], f"{image}: tar")
        run(["docker", "import", *changes, str(archive), image], f"{image}: docker import")


def finish_python(root: Path, certificates: Path) -> None:
    """Put Python where the real image has it, and the authorities that this machine trusts."""
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    for marker in (root / "usr/lib").glob("python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    shutil.copyfile(certificates, root / CERTIFICATES.lstrip("/"))


def run(command: list[str], what: str) -> None:
    """Run a command. Raises StandInError with the last line of its output when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        last = (done.stdout.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise StandInError(f"{what}: {last}")


def succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
