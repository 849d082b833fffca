"""``baton up | router | worker``, the operator's commands, ``settings`` and ``version``.

Only what a command needs is imported: ``baton --help`` starts without a model library, a web framework or Redis.
Exit codes: 0 done, 1 something failed while running, 2 the command line or a setting is wrong.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from baton_serve.core.process.settings import Settings
    from baton_serve.workers.settings import WorkerSettings

EXIT_FAILED = 1
EXIT_WRONG_SETTINGS = 2

#: Modules are named as rooms are, without the package ``baton_serve`` that all are in.
#: Command, the section it takes its settings from, its module with ``run(settings) -> int``, a line of help.
PROCESSES = {
    "up": ("up", "baton.up.up", "Start Redis, workers and a router on this machine, and stop them together."),
    "router": ("router", "baton.processes.router_processes", "Run a router: the OpenAI API in front of the workers."),
    "worker": ("worker", "workers.main", "Run a worker: one engine that prefills, decodes, or both."),
}
#: Command of an operator, which asks a router: its module, with a function of the command's name, a line of help.
OPERATOR = {
    "requests": ("baton.operator.requests_command", "List the live requests of all routers, or those that ended last."),
    "workers": ("baton.operator.workers_command", "List the workers that a router knows."),
    "top": ("baton.operator.top.command", "Watch a router in the terminal; q ends it."),
    "abort": ("baton.operator.abort_command", "Abort requests by id, all of them, or those that match."),
    "drain": ("baton.operator.drain_command", "Give a worker no new requests."),
    "resume": ("baton.operator.drain_command", "Give a drained worker requests again."),
}


class Commands(click.Group):
    """Builds a command only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*PROCESSES, *OPERATOR, *_OTHERS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in PROCESSES:
            return _process_command(cmd_name, with_options=not ctx.resilient_parsing)
        if cmd_name in OPERATOR:
            return _operator_command(cmd_name, with_options=not ctx.resilient_parsing)
        return _OTHERS.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in ``baton --help``, without importing what the commands import."""
        rows = [(name, line) for name, (_, _, line) in PROCESSES.items()]
        rows += [(name, line) for name, (_, line) in OPERATOR.items()]
        rows += [(name, command.short_help or "") for name, command in _OTHERS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. A wrong command line is one line on stderr."""
    try:
        code = _baton.main(args=None if arguments is None else list(arguments), standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "")
        return EXIT_WRONG_SETTINGS
    except click.ClickException as error:
        return _complain([error.format_message()])
    except click.exceptions.Abort:
        return 130
    return code if isinstance(code, int) else 0


def _complain(problems: Sequence[str]) -> int:
    for problem in problems:
        print(f"baton: {problem}", file=sys.stderr)
    return EXIT_WRONG_SETTINGS


def _process_command(name: str, with_options: bool) -> click.Command:
    section, module, line = PROCESSES[name]
    parameters = _setting_parameters(section) if with_options else []
    if name == "up":
        parameters.append(_passed_on())
    more = "A flag wins over its environment variable, that over the file given with --config."
    return _command(name, line, more, parameters, _runner(section, module))


def _command(
    name: str, line: str, more: str, parameters: list[click.Parameter], callback: Callable[..., int]
) -> click.Command:
    return click.Command(
        name,
        params=parameters,
        callback=callback,
        help=f"{line}\n\n{more}",
        short_help=line,
        context_settings={"max_content_width": 110},
    )


def _setting_parameters(section: str) -> list[click.Parameter]:
    from baton_serve.baton.config.options import options
    from baton_serve.baton.config.sections import settings_model

    return [_config_option(), *options(settings_model(section))]


def _config_option() -> click.Option:
    return click.Option(
        ["--config"],
        metavar="FILE",
        help="YAML file with the sections shared, router, worker, up and admin.  [env: BATON_CONFIG]",
    )


def _passed_on() -> click.Argument:
    return click.Argument(["passed_on"], metavar="[-- VLLM ARGS]", nargs=-1, type=click.UNPROCESSED)


def _with_passed_on(section: str, config: str | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags, with what stands after ``--`` added to ``vllm_args``, wherever that was set.

    Raises click.UsageError and ConfigurationError.
    """
    rest = dict(flags)
    passed_on = rest.pop("passed_on", ())
    if passed_on and not passed_on[0].startswith("-"):
        raise click.UsageError(f"Got unexpected extra argument ({passed_on[0]})")
    if passed_on:
        before: str = _load(section, config, rest).model_dump()["vllm_args"]
        rest["vllm_args"] = f"{before} {shlex.join(passed_on)}"
    return rest


def _runner(section: str, module: str) -> Callable[..., int]:
    def run(config: str | None, **flags: Any) -> int:
        from baton_serve.baton.config.configuration import CONFIG_VARIABLE, ConfigurationError
        from baton_serve.baton.up.preflight import PreflightError
        from baton_serve.workers.settings import WorkerSettings

        try:
            settings = _load(section, config, _with_passed_on(section, config, flags))
            if isinstance(settings, WorkerSettings):
                os.environ.update(_check_worker(settings))
        except PreflightError as error:
            _complain([str(error)])
            return EXIT_FAILED
        except ConfigurationError as error:
            return _complain(error.problems)
        if config is not None:
            os.environ[CONFIG_VARIABLE] = str(Path(config).resolve())  # for the processes that this one starts
        return int(importlib.import_module(f"baton_serve.{module}").run(settings))

    return run


def _check_worker(settings: WorkerSettings) -> dict[str, str]:
    """Check that the worker's packages are installed and that its model and adapters can be found.

    Raises PreflightError.

    Returns environment variables to add before the model is loaded: none, or ``HF_HUB_OFFLINE`` if the hub is out of
    reach.
    """
    from baton_serve.baton.up.hub import look_up
    from baton_serve.baton.up.preflight import check_adapters, check_model, check_worker_packages

    check_worker_packages()
    check_adapters(settings.adapters)
    return {} if check_model(settings.model) else look_up(settings.model, settings.revision, os.environ)


def _operator_command(name: str, with_options: bool) -> click.Command:
    module, line = OPERATOR[name]
    parameters: list[click.Parameter] = []
    if with_options:
        parameters = [*importlib.import_module(f"baton_serve.{module}").parameters(), *_setting_parameters("admin")]
    more = "Ids may be shortened to a beginning that no other has."
    return _command(name, line, more, parameters, _operator_runner(name, module))


def _operator_runner(name: str, module: str) -> Callable[..., int]:
    def run(config: str | None, **given: Any) -> int:
        from baton_serve.baton.config.configuration import ConfigurationError
        from baton_serve.baton.config.sections import settings_model
        from baton_serve.baton.operator.admin_client import AdminError

        flags = {key: given.pop(key) for key in settings_model("admin").model_fields}
        try:
            command = getattr(importlib.import_module(f"baton_serve.{module}"), name)
            return int(command(_load("admin", config, flags), **given))
        except ConfigurationError as error:
            return _complain(error.problems)
        except AdminError as error:
            _complain([str(error)])
            return EXIT_FAILED

    return run


def _load(section: str, config: str | None, flags: Mapping[str, Any]) -> Settings:
    """Read the settings of a section. Raises ConfigurationError."""
    from baton_serve.baton.config.configuration import CONFIG_VARIABLE, load
    from baton_serve.baton.config.sections import settings_model
    from baton_serve.baton.config.sources import read_document, read_secret_files

    document = read_document(config or os.environ.get(CONFIG_VARIABLE) or None)
    return load(settings_model(section), flags, read_secret_files(os.environ), document)


@click.command("scale", short_help="Start or stop workers of a running baton up.")
@click.argument("words", metavar="prefill=N decode=N", nargs=-1)
@click.option(
    "--url",
    "--port",
    "url",
    envvar="BATON_ADMIN_URL",
    help="Base URL of its router, where several run: http(s)://host:port, or a port.  [env: BATON_ADMIN_URL]",
)
@click.option("--socket", "path", type=Path, metavar="FILE", help="Its control socket, where it is in another place.")
def _scale(words: tuple[str, ...], url: str | None, path: Path | None) -> int:
    """Start or stop workers of a baton up that runs on this machine, while it serves.

    New workers get as many CPU threads as those that run. The youngest leave first, each once it has finished its
    requests. The command returns when all are ready or have left; interrupting it stops nothing.
    """
    from baton_serve.baton.operator.scale_command import port_of, scale
    from baton_serve.baton.processes.control_socket import ControlSocketError
    from baton_serve.baton.settings import router_url

    try:
        base_url = None if url is None else router_url(url)
    except ValueError as error:
        raise click.UsageError(f"--url: {error}") from None
    try:
        return scale(words, None if base_url is None else port_of(base_url), path)
    except ControlSocketError as error:
        _complain([str(error)])
        return EXIT_FAILED


@click.command("torture", short_help="Kill the parts of a Baton under load, and check every answer.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1),
    help="How long the storm lasts; default 2, without end where --kills is given.",
)
@click.option("--kills", type=click.IntRange(min=1), help="End the storm after so many SIGKILLs.")
@click.option("--seed", type=int, help="Decides what is drawn, see above. Default: another one each time.")
@click.option("--prefill", type=click.IntRange(min=1), default=2, show_default=True, help="Prefill workers.")
@click.option("--decode", type=click.IntRange(min=1), help="Decode workers; default 3, and 2 of vLLM.")
@click.option("--routers", type=click.IntRange(min=1), default=2, show_default=True, help="Routers.")
@click.option(
    "--prefill-tp", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks of each prefill worker."
)
@click.option(
    "--decode-tp", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks of each decode worker."
)
@click.option("--clients", type=click.IntRange(min=1), default=12, show_default=True, help="Clients that ask at once.")
@click.option(
    "--engine",
    type=click.Choice(["baton", "vllm"]),
    default="baton",
    show_default=True,
    help="Engine of all workers: Baton's own, or vLLM servers, each with one rank. A vLLM server takes a minute to "
    "start, so there half of all kills are of routers.",
)
@click.option("--vllm", help="Where vLLM is: a script, a Python, or the folder of an environment. Default: PATH.")
@click.option("--stock", is_flag=True, help="Have vLLM servers load vLLM's own NixlConnector, not Baton's connector.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report to this file as well, with a list of all faults.",
)
def _torture(
    minutes: float | None,
    kills: int | None,
    seed: int | None,
    prefill: int,
    decode: int | None,
    routers: int,
    prefill_tp: int,
    decode_tp: int,
    clients: int,
    engine: str,
    vllm: str | None,
    stock: bool,
    report: Path | None,
) -> int:
    """Start a whole Baton with the demo model, and kill, stop and empty its processes while clients ask. Check that
    each answer is token for token that of a worker where nothing else goes on, and that nothing is held afterwards.

    It needs no GPU and no Redis, and touches nothing that runs already. --minutes and --kills limit the storm only.
    Getting the right answers, starting, waiting until nothing is held and measuring take another minute or two on a
    machine where nothing else runs.

    The same seed gives the same questions, clients, pauses, lengths of stops and schedule. What is due is put off while
    no process of its kind can be hurt, and the victim depends on which processes live: two runs are alike, not equal.

    Logs are kept in a temporary folder: removed when nothing is wrong, named otherwise. Ctrl-C and SIGTERM end it
    early, with a report of what there is; a second one ends it at once.

    Exit status 1 when something is wrong, 2 when it cannot be done as asked, 130 or 143 when it was interrupted.
    """
    import secrets

    from baton_serve.baton.processes.vllm.connectors import BATON, STOCK
    from baton_serve.baton.processes.vllm.held_ports import HeldPorts
    from baton_serve.baton.processes.vllm.program import VllmError
    from baton_serve.baton.torture.command import torture
    from baton_serve.baton.torture.run import RunPlan
    from baton_serve.baton.torture.shape import Shape
    from baton_serve.baton.torture.vllm_shape import PAUSE_S, make_vllm_shape
    from baton_serve.baton.up.preflight import PreflightError, check_worker_packages

    if engine == "vllm" and (prefill_tp, decode_tp) != (1, 1):
        raise click.UsageError("--prefill-tp and --decode-tp are for --engine baton")
    if engine != "vllm" and (vllm is not None or stock):
        raise click.UsageError("--vllm and --stock are for --engine vllm")
    minutes = minutes if minutes or kills else 2.0
    seconds, most = (minutes * 60 if minutes else float("inf")), (float("inf") if kills is None else kills)
    seed = secrets.randbelow(10**6) if seed is None else seed
    try:
        if engine == "vllm":
            with HeldPorts() as ports:
                connector = STOCK if stock else BATON
                servers = make_vllm_shape(vllm, prefill, decode or 2, routers, ports, connector)
                plan = RunPlan(seed, seconds, most, servers, num_clients=clients, pause_s=PAUSE_S, cost_rounds=0)
                return torture(plan, report)
        check_worker_packages()
    except (PreflightError, VllmError) as error:
        _complain([str(error)])
        return EXIT_FAILED
    shape = Shape(prefill, decode or 3, routers, prefill_tp, decode_tp)
    return torture(RunPlan(seed, seconds, most, shape, num_clients=clients), report)


@click.command("settings", short_help="Print every setting as a Markdown table.")
def _settings() -> None:
    """Print every setting with its flag, variable, default and meaning, as the Markdown of docs/settings.md."""
    from baton_serve.baton.config.reference import markdown

    click.echo(markdown())


@click.command("version", short_help="Print the version.")
def _version() -> None:
    """Print the version."""
    from baton_serve.core.process.version import version

    click.echo(version())


def _print_version(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    """The callback of ``--version``: print what a bug report should contain."""
    if not is_wanted or ctx.resilient_parsing:
        return
    import platform

    from baton_serve.core.process.version import is_compiled, version

    python = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    click.echo(f"baton {version()} ({python}{', compiled' if is_compiled() else ''})")
    ctx.exit()


#: Commands without a section of settings. The wheel leaves ``torture`` out.
_OTHERS: dict[str, click.Command] = {
    "scale": _scale,
    **({"torture": _torture} if find_spec("baton_serve.baton.torture") is not None else {}),
    "settings": _settings,
    "version": _version,
}
_baton = Commands(
    "baton",
    help="Serve a large language model with prefill and decode on different workers.",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version, and what it runs on.",
        )
    ],
)
