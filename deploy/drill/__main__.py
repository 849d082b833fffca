"""``make test-compose``: needs a Docker engine and compose, new or 1.29.

It works on a compose project of its own, on ports that the engine chooses, and takes it down again whatever happens.
Exit code 0: every stream had the same text as when nothing dies, the clients of the killed router got it when they
asked the other router, and nothing was left of any request.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from deploy import stand_in_bases
from deploy.drill.abort import abort_through_the_other_router
from deploy.drill.deployment import compose_command, deployed
from deploy.drill.doors import try_the_doors
from deploy.drill.errors import DrillError
from deploy.drill.images import build
from deploy.drill.peace import peace, say
from deploy.drill.redis_death import kill_redis
from deploy.drill.router_death import kill_router
from deploy.drill.worker_deaths import kill_decode, kill_prefill

#: The scenes in their order. After each of them two routers and all workers run.
SCENES = (try_the_doors, abort_through_the_other_router, kill_prefill, kill_decode, kill_redis, kill_router)


def main() -> int:
    arguments = _arguments()
    try:
        compose_command()  # it may be missing, and to make the bases takes minutes
        if arguments.stand_in_bases:
            stand_in_bases.provide(arguments)
        if not arguments.no_build:
            build(arguments.wheels, host_network=arguments.stand_in_bases)
        with deployed() as deployment:
            stage = peace(deployment)
            for scene in SCENES:
                scene(stage)
            say("all as it should be")
    except (DrillError, stand_in_bases.StandInError, subprocess.CalledProcessError) as error:
        print(f"test-compose: {error}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test-compose", description=__doc__)
    parser.add_argument("--no-build", action="store_true", help="use the images that are there")
    parser.add_argument(
        "--stand-in-bases",
        action="store_true",
        help="make the base images from Debian packages where no registry has them; needs root and debootstrap",
    )
    stand_in_bases.add_arguments(parser)
    links = Path(os.environ.get("PIP_FIND_LINKS") or "-")
    parser.add_argument(
        "--wheels",
        type=Path,
        default=links if links.is_dir() else None,
        help="a folder of wheels for the build; default: $PIP_FIND_LINKS if that is a folder",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
