"""Checks of an announced entry before it is used: other programs, and older versions of Baton, write to Redis too.

An entry contains addresses to connect to, parts of Redis keys, labels of metrics, and numbers to compute with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from baton_serve.core.protocol.addresses import is_host, worker_url
from baton_serve.core.protocol.id_syntax import KEY_ID
from baton_serve.core.protocol.worker import MAX_ADAPTERS

if TYPE_CHECKING:
    from baton_serve.core.protocol.router import RouterRecord
    from baton_serve.core.protocol.vllm_server import VllmStatus
    from baton_serve.core.protocol.worker import WorkerLoad, WorkerStatus

#: Characters of a model's name, a hash, a group.
MAX_TEXT_CHARS = 512
#: Remote engines for which a worker reports an error; usually there are a few.
MAX_PEER_ERRORS = 64
#: More than any count of a worker: blocks, sequences, tokens.
MAX_COUNT = 2**40


class ImpossibleError(Exception):
    """The entry has an impossible value. The message is one line that quotes nothing of the entry."""


def check_worker(status: WorkerStatus) -> None:
    """Check the entry of a worker. Raises ImpossibleError."""
    record, load = status.record, status.load
    if KEY_ID.fullmatch(record.engine_id) is None:
        raise ImpossibleError("engine_id is not an id")
    if record.name and KEY_ID.fullmatch(record.name) is None:
        raise ImpossibleError("name is not a name")
    for name in ("model", "compatibility_hash", "weights_fingerprint"):
        if len(getattr(record, name)) > MAX_TEXT_CHARS:
            raise ImpossibleError(f"{name} is too long")
    if len(record.adapters) > MAX_ADAPTERS or any(
        len(text) > MAX_TEXT_CHARS for one in record.adapters for text in (one.name, one.fingerprint)
    ):
        raise ImpossibleError("adapters are too many or too long")
    _check_url("url", record.url)
    if record.internal_url:
        _check_url("internal_url", record.internal_url)
    _check_counts(msgspec.structs.asdict(record))
    _check_load(load)


def check_vllm_server(status: VllmStatus) -> None:
    """Check the entry of a vLLM server. Raises ImpossibleError."""
    record = status.record
    for name in ("model", "version"):
        if len(getattr(record, name)) > MAX_TEXT_CHARS:
            raise ImpossibleError(f"{name} is too long")
    if not record.version.isprintable():
        raise ImpossibleError("version is not printable")
    _check_url("url", record.url)
    ports_can_be = 0 < record.side_channel_port < 65536 and 0 <= record.handshake_port < 65536
    if not is_host(record.side_channel_host) or not ports_can_be:
        raise ImpossibleError("the side channel is nowhere")
    if not 0 <= record.started_s <= MAX_COUNT:
        raise ImpossibleError("started_s is not a time that can be")
    _check_counts(msgspec.structs.asdict(record))
    _check_load(status.load)


def _check_load(load: WorkerLoad) -> None:
    _check_counts(msgspec.structs.asdict(load))
    if len(load.peer_errors) > MAX_PEER_ERRORS or any(
        len(engine_id) > MAX_TEXT_CHARS or len(why) > MAX_TEXT_CHARS for engine_id, why in load.peer_errors.items()
    ):
        raise ImpossibleError("peer_errors are too many or too long")


def check_router(record: RouterRecord) -> None:
    """Check the entry of a router. Raises ImpossibleError."""
    _check_url("url", record.url)
    if record.internal_url:
        _check_url("internal_url", record.internal_url)
    if len(record.group) > MAX_TEXT_CHARS:
        raise ImpossibleError("group is too long")
    _check_counts({"started_s": record.started_s})


def _check_url(name: str, url: str) -> None:
    try:
        whole = worker_url(url) == url
    except ValueError:
        whole = False
    if not whole:
        raise ImpossibleError(f"{name} is not a base URL")


def _check_counts(fields: dict[str, object]) -> None:
    for name, value in fields.items():
        if isinstance(value, int) and not 0 <= value <= MAX_COUNT:
            raise ImpossibleError(f"{name} is not a number that can be")
