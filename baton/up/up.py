"""``baton up``: a whole Baton on this machine with one command. Nothing is left of it afterwards."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from baton_serve.baton.config.configuration import CONFIG_VARIABLE, ConfigurationError, Document, load
from baton_serve.baton.config.sources import read_document, read_secret_files
from baton_serve.baton.processes.child import COMMAND, ChildDiedError, ChildSpec
from baton_serve.baton.processes.control_socket import ControlSocketError, control_socket, socket_path
from baton_serve.baton.processes.crew import Crew
from baton_serve.baton.processes.display import Display, make_display, reminders
from baton_serve.baton.processes.embedded_redis import (
    EmbeddedRedis,
    EmbeddedRedisError,
    carried_redis_server,
    find_redis_server,
)
from baton_serve.baton.processes.kept_child import Keeping, KeptChild
from baton_serve.baton.processes.output import say
from baton_serve.baton.processes.own_token import kept_token, token_path
from baton_serve.baton.processes.private_folder import PrivateFolderError, private_folder
from baton_serve.baton.processes.redis_child import NAME as REDIS
from baton_serve.baton.processes.redis_child import keep_redis
from baton_serve.baton.processes.supervisor import StoppedError, StopRequests, Supervisor
from baton_serve.baton.processes.vllm.held_ports import HeldPorts
from baton_serve.baton.settings import UpSettings
from baton_serve.baton.up.engines import Engine, PlanInputs, choose_engine
from baton_serve.baton.up.hub import look_up
from baton_serve.baton.up.machine import this_machine
from baton_serve.baton.up.missing import MissingFile
from baton_serve.baton.up.plan import (
    DECODE_STAGE,
    PREFILL_STAGE,
    ProcessPlan,
    ServedModel,
    child_environ,
    choose_model,
    router_flags,
    with_client_keys,
    with_known_port,
    with_missing_file,
)
from baton_serve.baton.up.preflight import PreflightError, check_model, check_port, check_redis, check_tls
from baton_serve.baton.up.scaling import Scaler
from baton_serve.baton.up.welcome import Service, first_model, welcome
from baton_serve.core.process.settings import redis_login
from baton_serve.router.settings import RouterSettings

EXIT_FAILED = 1
EXIT_WRONG_SETTINGS = 2


def run(settings: UpSettings, command: tuple[str, ...] = COMMAND) -> int:
    """Run until Ctrl-C or SIGTERM comes, or a process cannot be kept alive; returns the exit code."""
    try:
        environ = read_secret_files(os.environ)
        document = read_document(environ.get(CONFIG_VARIABLE) or None)
        with HeldPorts() as ports:
            start = _prepare(settings, environ, document, command, ports)
            return asyncio.run(_serve(start))
    except ConfigurationError as error:
        for problem in error.problems:
            print(f"baton: {problem}", file=sys.stderr)
        return EXIT_WRONG_SETTINGS
    except (PreflightError, EmbeddedRedisError, ChildDiedError) as error:
        print(f"baton: {error}", file=sys.stderr)
        return EXIT_FAILED


@dataclass(frozen=True)
class _Start:
    """Everything that was decided before the first process is started."""

    settings: UpSettings
    environ: dict[str, str]
    document: Document
    command: tuple[str, ...]
    model: ServedModel
    internal_token: str
    router: RouterSettings
    engine: Engine
    #: The admin token, if this process made it; empty otherwise.
    own_token: str = field(default="", repr=False)

    @property
    def needs_redis(self) -> bool:
        """Whether a private Redis has to be started."""
        return self.settings.redis_url is None and self.engine.needs_redis(self.router)

    def plan(self, redis_url: str) -> ProcessPlan:
        """The plan. ``redis_url`` is empty without Redis."""
        given = {"redis_url": redis_url, "internal_token": self.internal_token}
        if self.settings.redis_password is not None:
            given["redis_password"] = self.settings.redis_password.get_secret_value()
        environ = child_environ(self.environ, **given)
        machine = this_machine(self.environ)
        return self.engine.plan(
            PlanInputs(self.settings, self.router, self.model, self.command, environ, self.document, machine, redis_url)
        )


def _prepare(
    settings: UpSettings, environ: dict[str, str], document: Document, command: tuple[str, ...], ports: HeldPorts
) -> _Start:
    """Check everything that can be checked before the first start. Raises PreflightError or ConfigurationError."""
    from baton_serve.baton.demo import CACHE_BYTES, MODEL_DIR, MODEL_NAME

    model = choose_model(settings, environ, document, ServedModel(str(MODEL_DIR), MODEL_NAME, CACHE_BYTES))
    environ = with_client_keys(settings, environ, document)
    token = settings.internal_token.get_secret_value() if settings.internal_token else secrets.token_urlsafe(32)
    router = load(RouterSettings, router_flags(settings), environ, document)
    own_token = secrets.token_urlsafe(32) if router.admin_token is None and router.serves_admin else ""
    if own_token:
        environ = child_environ(environ, admin_token=own_token)
    engine = choose_engine(settings, environ, ports)
    is_folder = check_model(model.place)
    start = _Start(
        settings, environ, document, command, engine.named(model, is_folder), token, router, engine, own_token
    )
    start.plan(settings.redis_url or ("unix:///to-be-started" if start.needs_redis else ""))
    check_tls(router)
    if not is_folder:
        environ.update(look_up(model.place, engine.revision(environ, document), environ))
    check_port(settings.host, settings.port)
    if settings.redis_url:
        check_redis(redis_login(settings.redis_url, settings.redis_password))
    return start


async def _serve(start: _Start) -> int:
    stops = StopRequests()
    log_dir = _log_dir(start.settings)
    async with stops.from_signals(), _redis(start, log_dir) as (redis_url, redis):
        missing = MissingFile(log_dir / f"missing-{os.getpid()}.json")  # another ``baton up`` may have the same folder
        plan = with_missing_file(start.plan(redis_url), missing.path)
        display = make_display([spec.name for spec in (*plan.prefill, *plan.decode, plan.router)])
        stages = _children(start.settings, plan, display, log_dir, missing)
        if redis is not None:  # Redis ends last
            stages.append([keep_redis(redis, Keeping(display.show, _tell_news, start.settings.start_timeout_s))])
        supervisor = Supervisor(stages, stops)
        try:
            await _run(start, supervisor, display, log_dir, missing)
        except ChildDiedError as error:
            raise ChildDiedError(f"{error} (logs in {log_dir})") from None
        finally:
            try:
                display.close()
            finally:
                for child in supervisor.children:
                    if child.name != REDIS:  # which is needed until the others have stopped
                        child.keep_no_more()  # none of them is started again while others stop
                await supervisor.stop(start.settings.stop_timeout_s, _tell_who_runs)
                missing.remove()
    return 0


def _children(
    settings: UpSettings, plan: ProcessPlan, display: Display, log_dir: Path, missing: MissingFile
) -> list[list[KeptChild]]:
    """The children by stages, each of which is a crew.

    Workers choose a new port at every start. The router keeps its port, because clients know it.
    """
    workers = Keeping(display.show, _tell_news, settings.start_timeout_s, log_dir, on_missing=missing.note)
    router = replace(workers, next_spec=with_known_port)
    return [_crew(stage, router if plan.router in stage else workers) for stage in plan.stages]


def _crew(specs: Sequence[ChildSpec], keeping: Keeping) -> list[KeptChild]:
    crew = Crew()
    return [KeptChild(spec, keeping, crew) for spec in specs]


def _tell_who_runs(names: Sequence[str]) -> None:
    """Print which children a stop waits for, except Redis, which runs until everything else has ended."""
    if names := [name for name in names if name != REDIS]:
        say(f"waiting for {', '.join(names)}; Ctrl-C once more kills what is left", sys.stdout)


def _tell_news(line: str) -> None:
    say(line, sys.stdout)


async def _run(
    start: _Start, supervisor: Supervisor[KeptChild], display: Display, log_dir: Path, missing: MissingFile
) -> None:
    try:
        async with reminders(display):
            answers = await supervisor.start()
        url = answers["router"].url
        model = await supervisor.unless_over(first_model(url, start.router))
    except StoppedError:
        display.close()
        say("stopping", sys.stdout)
        return
    display.close()
    keeping = Keeping(lambda *_: None, _tell_news, start.settings.start_timeout_s, log_dir, on_missing=missing.note)
    async with AsyncExitStack() as stack:
        token_file = stack.enter_context(_token_file(start, url))
        if start.engine.scales:
            await stack.enter_async_context(_commands(start, supervisor, url, keeping))
        troubles = tuple(child.trouble for child in supervisor.children if child.trouble)
        numbers = (_num_serving(supervisor, PREFILL_STAGE), _num_serving(supervisor, DECODE_STAGE))
        service = Service(
            url, model, *numbers, log_dir, start.router, troubles, start.engine.names, start.engine.scales, token_file
        )
        # Output that does not go to a terminal may go to a file that others read.
        say(welcome(service, start.own_token if sys.stdout.isatty() else ""), sys.stdout)
        await supervisor.wait()
        say("stopping", sys.stdout)


def _num_serving(supervisor: Supervisor[KeptChild], stage: int) -> int:
    return sum(not child.trouble for child in supervisor.stage(stage))


@contextmanager
def _token_file(start: _Start, url: str) -> Iterator[Path | None]:
    """The file with the admin token that was made, which is there while inside. If that is impossible, print why."""
    path = token_path(private_folder(os.environ), urlsplit(url).port or 0) if start.own_token else None
    with ExitStack() as stack:
        try:
            if path is not None:
                stack.enter_context(kept_token(path, start.own_token))
        except PrivateFolderError as error:
            say(f"the admin API needs a token of yours, in BATON_ADMIN_TOKEN: {error}", sys.stdout)
            path = None
        yield path


@asynccontextmanager
async def _commands(
    start: _Start, supervisor: Supervisor[KeptChild], url: str, keeping: Keeping
) -> AsyncIterator[None]:
    """Take the commands of ``baton scale`` while inside. If that is impossible, print why."""
    settings = start.settings
    gpus = this_machine(start.environ).gpus
    # A worker may drain for the first of the two times; the second is for what follows: withdraw, close, exit.
    scaler = Scaler(supervisor, keeping, gpus, settings.drain_timeout_s + settings.stop_timeout_s, _tell_news)
    path = socket_path(private_folder(os.environ), urlsplit(url).port or 0)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(control_socket(path, scaler.scale))
        except (ControlSocketError, PrivateFolderError) as error:
            say(f"baton scale will not work: {error}", sys.stdout)
        yield


@asynccontextmanager
async def _redis(start: _Start, log_dir: Path) -> AsyncIterator[tuple[str, EmbeddedRedis | None]]:
    """The URL of the Redis to use: the given one, or that of a private one, which is yielded too; empty for none.

    Starting it blocks the loop for a few milliseconds: its parent has to be the main thread, which lives as long as
    this process.
    """
    if not start.needs_redis:
        yield start.settings.redis_url or "", None
        return
    if carried_redis_server() is None:
        say(f"redis      {find_redis_server()}, found on PATH", sys.stdout)
    with EmbeddedRedis(log_path=log_dir / "redis.log") as redis:
        yield redis.url, redis


def _log_dir(settings: UpSettings) -> Path:
    if settings.log_dir is None:
        return Path(tempfile.mkdtemp(prefix="baton-logs-"))
    directory = settings.log_dir.expanduser().absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreflightError(f"cannot write logs to {directory}: {error.strerror}") from error
    return directory
