"""Which workers may serve a model: the prefill workers, and the decode workers that can read from each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from baton_serve.core.protocol.errors import ApiError, UnavailableError, no_such_model
from baton_serve.core.protocol.worker import Role
from baton_serve.router.pool.candidates import Candidates
from baton_serve.router.pool.kind import WorkerKind, difference
from baton_serve.router.pool.worker import Worker

#: Most routes remembered, one per model name asked for.
MAX_ROUTES: Final = 256


@dataclass(slots=True)
class Route:
    """The workers that may serve a model. ``single``: each worker in ``decode`` does both legs; ``prefill`` is empty.

    ``single`` is also set while no prefill worker is known, since a D can prefill.
    """

    prefill: Candidates
    decode: Candidates
    single: bool
    model: str = ""
    #: The kind that all of its workers are; None: they are of several. A worker's kind never changes.
    kind: WorkerKind | None = field(init=False, compare=False)
    #: Whether another route takes its place.
    is_over: bool = field(default=False, init=False, compare=False)
    #: The readers of each source, by ``WorkerKind.same_readers``. Equal sets of readers are one object.
    _by_source: dict[Hashable, Candidates] = field(default_factory=dict, init=False, compare=False, repr=False)
    _by_weights: dict[str, Route | None] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        kinds = {worker.kind for worker in chain(self.prefill, self.decode)}
        self.kind = kinds.pop() if len(kinds) == 1 else None

    @property
    def judges_bodies(self) -> bool:
        """Whether a body is for its workers to judge."""
        return self.kind is not None and self.kind.judges_bodies

    @property
    def can_prefill(self) -> bool:
        """Whether a prefill worker can be reached and does not drain."""
        return any_takes_work(self.prefill)

    @property
    def can_decode(self) -> bool:
        """Whether a decode worker can be reached and does not drain."""
        return any_takes_work(self.decode)

    def readers(self, source: Worker) -> Candidates:
        """The decode workers that can read ``source``'s blocks."""
        key = source.kind.same_readers(source, self.model)
        readers = self._by_source.get(key)
        if readers is None:
            found = Candidates(worker for worker in self.decode if not difference(source, worker, self.model))
            readers = next((one for one in (self.decode, *self._by_source.values()) if one == found), found)
            self._by_source[key] = readers
        return readers

    def continuing(self, weights: str) -> Route | None:
        """The workers that can continue after tokens computed with these weights. None: no decode worker can.

        Another revision of the model, or of the adapter, would continue differently. Plain workers do not
        tell what they compute with.
        """
        if weights not in self._by_weights:
            prefill, decode = (
                Candidates(one for one in some if one.kind.has_weights and one.weights_of(self.model) == weights)
                for some in (self.prefill, self.decode)
            )
            self._by_weights[weights] = Route(prefill, decode, self.single, self.model) if decode else None
        return self._by_weights[weights]

    def end(self) -> None:
        """Note that another route takes its place."""
        self.is_over = True
        for candidates in (self.prefill, self.decode, *self._by_source.values()):
            candidates.end()
        for route in self._by_weights.values():
            if route is not None:
                route.end()


class RequestRoute:
    """The route of one request, looked up again only when workers have come or gone."""

    __slots__ = ("_model", "_route", "_routes")

    def __init__(self, routes: Callable[[str], Route | None], model: str, route: Route) -> None:
        """``routes`` finds the route of a model, which is ``route`` now."""
        self._routes = routes
        self._model = model
        self._route = route

    def now(self, weights: str | None) -> Route | None:
        """The workers with these weights, unless None; see ``Route.continuing``. None: no worker is left."""
        if self._route.is_over:
            found = self._routes(self._model)
            if found is None:
                return None
            self._route = found
        return self._route if weights is None else self._route.continuing(weights)


def any_takes_work(workers: Candidates) -> bool:
    """Whether a worker can be reached and does not drain."""
    for worker in workers:  # noqa: SIM110 (costs a third of ``any``, and every request asks several times)
        if worker.takes_work:
            return True
    return False


class Routes:
    """The route of each model asked for, cached until ``forget``."""

    def __init__(self, workers: Callable[[], Collection[Worker]]) -> None:
        self._workers = workers
        self._routes: dict[str, Route] = {}

    def of(self, model: str) -> Route:
        """The workers that may serve the model. Raises NotFoundError and UnavailableError."""
        route = self._routes.get(model)
        if route is None:
            route = self._make(model)
            if len(self._routes) >= MAX_ROUTES:
                self.forget()
            self._routes[model] = route
        return route

    def candidates(self, model: str) -> Route | None:
        """As ``of``. Returns None if no worker may serve the model."""
        try:
            return self.of(model)
        except ApiError:
            return None

    def forget(self) -> None:
        """Drop the cached routes: a worker came, left, or reported its models."""
        for route in self._routes.values():
            route.end()
        self._routes.clear()

    def _make(self, model: str) -> Route:
        workers = self._workers()
        if not workers:
            raise UnavailableError("No worker is known.", retry_after_s=1)
        serving = [worker for worker in workers if worker.serves(model)]
        if not serving:
            raise _nobody_serves(model, workers)
        prefill = Candidates(worker for worker in serving if worker.role is Role.PREFILL)
        decode = Candidates(worker for worker in serving if worker.role is Role.DECODE)
        both = Candidates(worker for worker in serving if worker.role is Role.BOTH)
        if not prefill and not (both and decode):
            return Route(Candidates(), decode or both, single=True, model=model)
        return _paired(prefill or both, Candidates((*decode, *both)), model)


def _nobody_serves(model: str, workers: Collection[Worker]) -> ApiError:
    silent = sum(worker.models is None for worker in workers)
    if silent:
        return UnavailableError(
            f"No worker is known that serves this model; {silent} have not said yet which models they serve.",
            retry_after_s=1,
        )
    return no_such_model(model)


def _paired(prefill: Candidates, decode: Candidates, model: str) -> Route:
    """The route, without the prefill workers from which no decode worker can read."""
    if not decode:
        raise UnavailableError("No decode worker is known that serves this model.", retry_after_s=1)
    sources = Candidates(
        source for source in prefill if any(not difference(source, reader, model) for reader in decode)
    )
    if sources:
        return Route(sources, decode, single=False, model=model)
    both = Candidates(worker for worker in decode if worker.role is Role.BOTH)
    if both:  # a worker with both roles needs no other worker's blocks
        return Route(Candidates(), both, single=True, model=model)
    found = difference(prefill[0], decode[0], model)
    raise UnavailableError(
        "No prefill worker is known that a decode worker can read from"
        + (f": they differ in {found.what}." if found is not None else "."),
        retry_after_s=1,
    )
