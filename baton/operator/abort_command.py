"""``baton abort``: end requests, by id or by what they have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from baton_serve.baton.operator.admin_client import AdminClient, AdminError, RouterRefusedError, named
from baton_serve.baton.operator.requests_command import warn_of_silent

if TYPE_CHECKING:
    from baton_serve.baton.settings import AdminSettings

LIVE_STATES = ("queued", "prefilling", "held", "reading", "decoding")


def parameters() -> list[click.Parameter]:
    """The arguments and options of the command in addition to its settings."""
    return [
        click.Argument(["ids"], nargs=-1, metavar="[ID]..."),
        click.Option(["--all", "everything"], is_flag=True, help="Every live request, of all routers."),
        click.Option(["--state"], type=click.Choice(LIVE_STATES), help="Only requests in this state."),
        click.Option(["--worker"], help="Only requests on this prefill or decode worker."),
        click.Option(["--model"], help="Only requests for this model."),
        click.Option(["--user"], help="Only requests of this user."),
        click.Option(["--older-than-s"], type=click.FloatRange(min=0), help="Only requests older than this, seconds."),
    ]


def abort(settings: AdminSettings, ids: tuple[str, ...], everything: bool, **given: Any) -> int:
    """Abort requests and print their ids.

    Raises AdminError when a named request is not aborted, or no request is, and UsageError when the arguments do not
    say which requests are meant.
    """
    wanted = {name: value for name, value in given.items() if value is not None}
    _check_one_way(ids, everything, wanted)
    client = AdminClient(settings)
    if ids:
        _by_id(client, ids)
    else:
        _matching(client, wanted or {"all": True})
    return 0


def _check_one_way(ids: tuple[str, ...], everything: bool, wanted: dict[str, Any]) -> None:
    """Raises UsageError unless the requests are given in just one way: ids, ``--all``, or filters."""
    filters = " ".join(f"--{name.replace('_', '-')}" for name in wanted)
    ways = [way for way in ("ids" * bool(ids), "--all" * everything, filters) if way]
    if not ways:
        raise click.UsageError("give ids, or --all, or what the requests have in common (--state, --user, ...)")
    if len(ways) > 1:
        raise click.UsageError(f"{' and '.join(ways)} do not combine: give one or the other")


def _by_id(client: AdminClient, ids: tuple[str, ...]) -> None:
    """Abort each request on its own. The router resolves a shortened id: it knows which routers' requests it cannot
    see.
    """
    refusals = []
    for given in dict.fromkeys(ids):
        try:
            _print(client.abort(given))
        except RouterRefusedError as refusal:
            refusals.append(str(refusal))
    if refusals:
        raise AdminError("; ".join(refusals))


def _matching(client: AdminClient, wanted: dict[str, Any]) -> None:
    if "worker" in wanted:
        wanted = {**wanted, "worker": named(wanted["worker"], client.workers(), "worker")}
    aborted = client.abort_matching(wanted)
    _print(aborted)
    warn_of_silent(client.unreachable_routers)
    if not aborted:
        raise AdminError("nothing was aborted: no live request matches")


def _print(aborted: list[str]) -> None:
    for request_id in aborted:
        click.echo(request_id)
