"""Records the work of a step, as CUDA graphs, to replay it."""

from __future__ import annotations

from collections.abc import Callable

import torch

#: Does on the device what it did when it was recorded, with what is in the same tensors now.
Replay = Callable[[], None]
#: Records work, which reads and writes tensors that outlive it. It may run the work any number of times. Recordings are
#: replayed one at a time, as they share memory.
Recorder = Callable[[Callable[[], None]], Replay]

#: Before the recording: the first time libraries allocate, and Triton compiles, which a recording does not allow.
NUM_WARM_UPS = 2


class CudaRecorder:
    """A ``Recorder`` whose graphs share one pool of memory: only one runs at a time, and none keeps anything there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Replay:
        """Raises RuntimeError if the work cannot be recorded, for example because it waits for the device."""
        self._warm_up(work)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use CUDA meanwhile, so only this one is watched for calls that do not fit.
        # The outer context makes the stream of before the current one again, also after a recording that has failed.
        with (
            torch.cuda.stream(torch.cuda.current_stream(self._device)),
            torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            work()
        return graph.replay

    def _warm_up(self, work: Callable[[], None]) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(NUM_WARM_UPS):
                work()
        torch.cuda.synchronize(self._device)
