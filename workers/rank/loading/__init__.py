"""Loads the model shard of a rank, and refuses models that Baton cannot serve. Begin with ``model``.

``model``          loads the model and runs it; ``fingerprint`` is a hash over its weights
``adapters``       loads LoRA adapters, and proves that they are computed as peft computes them
``layers_once``    forward passes that share what the first one computes in the layers
``config_checks``  refuses models by their config; ``probe`` compares the paged attention with the model's own
"""
