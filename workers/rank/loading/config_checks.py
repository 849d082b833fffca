"""Refuses models whose config has features that the paged attention does not compute."""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PretrainedConfig, PreTrainedModel

from baton_serve.workers.rank_protocol.errors import UnsupportedModelError

#: Config attributes that switch a feature on, with the feature's name. It is off if missing, None, False or 0.
_SWITCHES = {
    "vision_config": "multi-modal input",
    "audio_config": "multi-modal input",
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "attn_logit_softcapping": "soft-capped attention scores",
    "attention_chunk_size": "chunked attention",
    "num_kv_shared_layers": "layers that share their KV cache",
    "alibi": "ALiBi position biases",
    "use_alibi": "ALiBi position biases",
    "add_cross_attention": "cross attention",
    "cross_attention_layers": "cross attention",
    "use_bidirectional_attention": "bidirectional attention",
}
#: Projections that must be split by heads, so that a rank's cache holds the range of heads that the rank announces.
_BY_HEADS = ("q_proj", "k_proj", "v_proj")
_SERVED_LAYER_TYPES = {"full_attention", "sliding_attention"}
#: Rotary embeddings that are known not to depend on the longest sequence of a batch, as "dynamic" and "longrope" do:
#: with these a sequence's cache would depend on others, which no short probe can show.
_SERVED_ROPE_TYPES = {None, "default", "linear", "llama3", "yarn"}


def check_config(config: PretrainedConfig, model_class: type[PreTrainedModel] | None) -> None:
    """Raise UnsupportedModelError with all unsupported features, if there are any."""
    reasons = list(dict.fromkeys([*_structure(config, model_class), *_features(config), *_rope(config)]))
    if reasons:
        refuse(config, "; ".join(reasons))


def check_split(config: PretrainedConfig, num_ranks: int) -> None:
    """Raise UnsupportedModelError unless the heads can be split evenly: the first ones for rank 0, the next for rank 1,
    and so on; no head is cut, and every rank gets equally many attention heads and KV heads.
    """
    reasons = list(_split(config, num_ranks))
    if reasons:
        ranks = f"{num_ranks} ranks"
        raise UnsupportedModelError(
            f"model type '{config.model_type}' cannot be split over {ranks}: {'; '.join(reasons)}"
        )


def refuse(config: PretrainedConfig, reason: str) -> None:
    raise UnsupportedModelError(f"model type '{config.model_type}' is not supported: {reason}")


def _structure(config: PretrainedConfig, model_class: type[PreTrainedModel] | None) -> Iterator[str]:
    if getattr(config, "is_encoder_decoder", False):
        yield "encoder-decoder"
    if config.get_text_config() is not config:
        yield "multi-modal input"
    if getattr(config, "is_causal", True) is False:
        yield "bidirectional attention"
    if model_class is None:
        yield "transformers has no decoder-only language model for it"
    elif getattr(model_class, "_is_stateful", False):
        yield "recurrent (state space or linear attention) layers"
    elif not model_class._supports_attention_backend:
        yield "its attention cannot be replaced in transformers"


def _split(config: PretrainedConfig, num_ranks: int) -> Iterator[str]:
    plan = getattr(config, "base_model_tp_plan", None)
    if not plan:
        yield "transformers has no tensor-parallel plan for it"
        return
    styles = {name.rpartition(".")[2]: style for name, style in plan.items()}
    whole = [name for name in _BY_HEADS if styles.get(name) != "colwise"]
    if whole:
        yield f"its plan in transformers does not split {', '.join(whole)} by heads"
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    uneven = [
        f"{number} {what}"
        for number, what in ((heads, "attention heads"), (kv_heads, "KV heads"))
        if number % num_ranks
    ]
    if uneven:
        yield f"{num_ranks} ranks do not divide its {' and its '.join(uneven)}"


def _features(config: PretrainedConfig) -> Iterator[str]:
    for name, feature in _SWITCHES.items():
        if getattr(config, name, None):
            yield feature
    if getattr(config, "position_embedding_type", None) == "alibi":
        yield "ALiBi position biases"
    others = sorted(set(getattr(config, "layer_types", None) or ()) - _SERVED_LAYER_TYPES)
    if others:
        yield f"layers of type {', '.join(others)}"


def _rope(config: PretrainedConfig) -> Iterator[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    # There is either one set of parameters, or one for each layer type.
    for one in [parameters, *(value for value in parameters.values() if isinstance(value, dict))]:
        kind = one.get("rope_type")
        if kind not in _SERVED_ROPE_TYPES:
            yield f"rotary embeddings of type {kind} (they may depend on the longest sequence of a batch)"
