"""The drill while nothing dies: gets the right answer, and checks that nothing is left of requests that have ended."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from deploy.drill.admin import Admin, until
from deploy.drill.deployment import NUM_WORKERS, SCALE, docker
from deploy.drill.errors import DrillError
from deploy.drill.streams import EXACT, MAX_TOKENS, TIMEOUT_S, Stream, demand

if TYPE_CHECKING:
    from deploy.drill.deployment import Deployment

#: Longest time until all run and know each other, seconds: workers load the model on a machine that may be busy.
START_S = 600.0
#: How many questions each router is asked after each scene.
NUM_QUESTIONS = 2


@dataclass(frozen=True)
class Stage:
    """What every scene needs."""

    deployment: Deployment
    admin: Admin
    #: The text of the right answer.
    expected: str

    def urls(self) -> list[str]:
        """The base URLs of the routers."""
        return list(self.deployment.routers().values())


def peace(deployment: Deployment) -> Stage:
    """Wait until every router knows every worker, and ask once. Raises DrillError."""
    router = next(iter(deployment.routers()))
    admin = Admin(docker("exec", router, "cat", "/run/baton/admin-token"))
    know_all(deployment, admin)
    say(f"{SCALE['router']} routers know {NUM_WORKERS} workers")
    stream, begun_s = Stream(deployment.routers()[router]), time.monotonic()
    stream.run("")  # nothing is expected yet
    say(f"in peace an answer of {MAX_TOKENS} tokens takes {stream.ended_s - begun_s:.1f} s")
    stage = Stage(deployment, admin, stream.text)
    afterwards(stage, "in peace")
    return stage


def afterwards(stage: Stage, when: str) -> None:
    """Check that every router answers right, and that nothing is left of any request. Raises DrillError."""
    urls = stage.urls()
    for url in urls:
        outcomes = Counter(Stream(url).run(stage.expected) for _ in range(NUM_QUESTIONS))
        demand(outcomes, {EXACT: NUM_QUESTIONS}, f"afterwards ({when}), on {url}")
    until(TIMEOUT_S, f"no lease is left ({when})", lambda: stage.admin.num_leases(urls[0]) == 0)
    until(TIMEOUT_S, f"no request is listed ({when})", lambda: not stage.admin.requests(urls[0]))
    until(TIMEOUT_S, f"no worker keeps anything ({when})", lambda: stage.admin.num_kept(urls[0]) == 0)


def start_again(stage: Stage, container: str) -> None:
    """Start a killed container again, and wait until all know each other. Raises DrillError."""
    docker("start", container)
    know_all(stage.deployment, stage.admin)


def know_all(deployment: Deployment, admin: Admin) -> None:
    """Wait until every router knows every worker. Raises DrillError."""
    routers = deployment.routers()
    if len(routers) != SCALE["router"]:
        raise DrillError(f"{len(routers)} routers run")
    for url in routers.values():
        until(START_S, f"{url} knows {NUM_WORKERS} workers", partial(_knows_all, admin, url))


def _knows_all(admin: Admin, url: str) -> bool:
    return len(admin.workers(url)) == NUM_WORKERS


def say(text: str) -> None:
    """Print a line of the drill's own."""
    print(text, flush=True)
