"""What workers report about a model they serve, and how the reports are merged."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from baton_serve.core.protocol.worker import WorkerRecord


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker reports about a model. 0 or an empty text: not reported."""

    #: Path or name from which the model was loaded.
    root: str = ""
    #: The model that an adapter (LoRA) is for, by the name under which it is served.
    parent: str = ""
    #: Fingerprint of the adapter, if the worker is Baton's; of other engines' adapters it is not known.
    adapter: str = ""
    #: When the model was loaded, Unix seconds.
    created: int = 0
    #: Most tokens of prompt and answer together.
    max_model_len: int = 0
    #: What a worker of Baton's samples with where a request says nothing; None: not reported.
    sampling_defaults: dict[str, int | float] | None = None


def announced(record: WorkerRecord) -> dict[str, ModelFacts]:
    """The facts about the model and the adapters of a worker in the registry, by name: the model comes first."""
    own = ModelFacts(
        root=record.root,
        created=record.created,
        max_model_len=record.max_model_len,
        sampling_defaults=record.sampling_defaults,
    )
    adapters = {
        one.name: msgspec.structs.replace(own, root=one.root, parent=record.model, adapter=one.fingerprint)
        for one in record.adapters
        if one.name != record.model
    }
    return {record.model: own, **adapters}


def any_defaults(facts: Iterable[ModelFacts]) -> dict[str, float] | None:
    """The first known defaults of sampling, for requests that say nothing."""
    return next((one.sampling_defaults for one in facts if one.sampling_defaults is not None), None)


def merged(facts: Iterable[ModelFacts]) -> ModelFacts:
    """Merge the facts of all workers: any root, parent and defaults, the earliest time, the smallest maximum length."""
    told = list(facts)
    return ModelFacts(
        root=next((one.root for one in told if one.root), ""),
        parent=next((one.parent for one in told if one.parent), ""),
        created=min((one.created for one in told if one.created), default=0),
        max_model_len=min((one.max_model_len for one in told if one.max_model_len), default=0),
        sampling_defaults=any_defaults(told),
    )
