"""How many positions a model was made for, with what its rotary embeddings are stretched by."""

from __future__ import annotations

from transformers import PretrainedConfig

#: Rotary embeddings whose ``factor`` multiplies the positions. Llama 3's, too, has a factor, but counts it already.
_STRETCHED = {"linear", "yarn"}
#: Configs that count the factor already, although their embeddings are linear ones.
_COUNTED = "gemma3"


def max_positions(config: PretrainedConfig) -> int | None:
    """The number of positions, as vLLM counts it; None: the config does not say."""
    most: int | None = getattr(config, "max_position_embeddings", None)
    parameters = getattr(config, "rope_parameters", None) or {}
    kind, factor = parameters.get("rope_type"), parameters.get("factor")
    if not most or kind not in _STRETCHED or not factor or str(config.model_type).startswith(_COUNTED):
        return most
    unstretched = parameters.get("original_max_position_embeddings") if kind == "yarn" else None
    return int((unstretched or most) * factor)
