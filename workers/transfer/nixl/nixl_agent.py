"""The only module that imports NIXL. Its agent is a ``TransferAgent``.

Facts about NIXL 1.5.1 over UCX, found out with two processes:

- NIXL is not documented as thread-safe, so one thread makes the agent, and only that thread calls it.
- ``transfer()`` releases the GIL. Over shared memory NIXL copies inside that call (256 MiB: 20 to 450 ms). Over TCP
  the call returns at once, and the data is copied inside later calls of either side.
- With NIXL's progress thread an idle agent uses a whole core. That thread is off here, so transfers make progress
  inside calls of the agent.
- Releasing a transfer in flight returns OK, *but NIXL continues to write to the local memory*. The same holds for
  removing the remote agent, after which the state of the transfer is unknown. So a transfer must end before either.
- A read ends with a flush of its connection. Over shared memory notifications go by TCP, and the flush after one waits
  until the peer has polled: half a millisecond, or for ever. So notifications have connections, an agent, of their own.
- Only the death of a peer ends a transfer early: then polling its state raises ``nixlRemoteDisconnectError``.
- NIXL refuses an index outside a descriptor list and, in ``prepare``, an address outside registered memory.
"""

from __future__ import annotations

import logging
from typing import Any

import nixl._api as nixl
import numpy as np
from numpy.typing import NDArray

from baton_serve.workers.rank_protocol.transfer_errors import (
    BackendFailedError,
    MisuseError,
    NixlError,
    PeerLostError,
    PeerUnknownError,
    UnsupportedError,
)
from baton_serve.workers.transfer.nixl.port import PieceList, Pieces, Region, TransferHandle, TransferState

logger = logging.getLogger(__name__)

_bindings = nixl.nixlBind

#: Every exception that NIXL defines, with Baton's error for it; a test checks that none is missing.
ERRORS: dict[type[Exception], type[NixlError]] = {
    _bindings.nixlRemoteDisconnectError: PeerLostError,
    _bindings.nixlNotFoundError: PeerUnknownError,
    _bindings.nixlInvalidParamError: MisuseError,
    _bindings.nixlMismatchError: MisuseError,
    _bindings.nixlNotAllowedError: MisuseError,
    _bindings.nixlNotPostedError: MisuseError,
    _bindings.nixlRepostActiveError: MisuseError,
    _bindings.nixlNoTelemetryError: MisuseError,
    _bindings.nixlNotSupportedError: UnsupportedError,
    _bindings.nixlBackendError: BackendFailedError,
    _bindings.nixlCancelledError: BackendFailedError,
    _bindings.nixlUnknownError: BackendFailedError,
    # Not exceptions of NIXL: a plugin is missing; the name of a remote agent is not UTF-8.
    RuntimeError: BackendFailedError,
    UnicodeDecodeError: BackendFailedError,
}


class NixlAgent:
    """``TransferAgent`` over NIXL's UCX backend, with a second agent of NIXL that sends the notifications."""

    def __init__(self, name: str) -> None:
        self._registered: list[Any] = []
        self._agent = _new_agent(name)
        #: Made for the first peer: a rank that is only read needs none. It has no memory, and no peer knows it.
        self._notifier: Any = None
        self._num_failed_polls = 0
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def register(self, region: Region) -> None:
        row = (region.address, region.num_bytes, region.device_id, "")
        with _translated:
            self._registered.append(self._agent.register_memory([row], region.memory_type))

    def metadata(self) -> bytes:
        with _translated:
            return bytes(self._agent.get_agent_metadata())

    def add_remote(self, metadata: bytes) -> str:
        if self._notifier is None:
            self._notifier = _new_agent(f"{self._name}-notices")
        with _translated:
            name = self._agent.add_remote_agent(metadata)
            try:
                self._notifier.add_remote_agent(metadata)
            except BaseException:
                self._agent.remove_remote_agent(name)
                raise
            return name.decode() if isinstance(name, bytes) else str(name)

    def remove_remote(self, name: str) -> None:
        with _translated:
            try:
                self._agent.remove_remote_agent(name)
            finally:
                self._notifier.remove_remote_agent(name)

    def prepare(self, pieces: Pieces, owner: str | None = None) -> PieceList:
        # One strided row for all blocks: address, length, device, stride, count.
        rows = [[row.address, row.num_bytes, pieces.device_id, row.stride, row.count] for row in pieces.rows]
        with _translated:
            return self._agent.prep_xfer_dlist(
                owner or "NIXL_INIT_AGENT", np.array(rows, dtype=np.uint64), pieces.memory_type
            )

    def release_list(self, pieces: PieceList) -> None:
        with _translated:
            pieces.release()

    def post_read(
        self, local: PieceList, local_ids: NDArray[np.int32], remote: PieceList, remote_ids: NDArray[np.int32]
    ) -> TransferHandle:
        with _translated:
            transfer = self._agent.make_prepped_xfer("READ", local, local_ids, remote, remote_ids)
            self._agent.transfer(transfer)
            return transfer

    def state(self, transfer: TransferHandle) -> TransferState:
        with _translated:
            return TransferState(self._agent.check_xfer_state(transfer))

    def release(self, transfer: TransferHandle) -> None:
        with _translated:
            self._agent.release_xfer_handle(transfer)

    def notify(self, peer: str, payload: bytes) -> None:
        with _translated:
            self._notifier.send_notif(peer, payload)

    def notifications(self) -> list[bytes]:
        if self._notifier is not None:
            self._progress_notifier()
        with _translated:
            return [payload for payloads in self._agent.get_new_notifs().values() for payload in payloads]

    def _progress_notifier(self) -> None:
        """Poll the notifier, so that what it sends makes progress. No peer notifies it.

        Its errors are logged and not raised: they must not keep back what peers have notified the other agent of, or
        every lease would last until its deadline.
        """
        try:
            with _translated:
                self._notifier.get_new_notifs()
        except NixlError as error:
            self._num_failed_polls += 1
            if self._num_failed_polls.bit_count() == 1:  # the 1st, 2nd, 4th, 8th...: there is a poll every few ms
                logger.warning("sending notifications has failed %d times so far: %s", self._num_failed_polls, error)

    def close(self) -> None:
        with _translated:
            for region in self._registered:
                self._agent.deregister_memory(region)
            self._registered.clear()
            del self._agent, self._notifier


def _new_agent(name: str) -> Any:
    with _translated:
        return nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))


class _Translated:
    """Raises NixlError instead of any exception of NIXL inside the block. A class, because a read enters many blocks
    and a generator takes longer.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            return
        ours = next((ours for theirs, ours in ERRORS.items() if isinstance(error, theirs)), None)
        if ours is not None:
            raise ours(" ".join(str(error).split()) or type(error).__name__) from error


_translated = _Translated()
