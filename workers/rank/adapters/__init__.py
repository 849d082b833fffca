"""LoRA adapters of a rank. Begin with ``low_rank``.

``low_rank``       what adapters add to the product of a layer, each to the tokens of its own rows
``adapter_set``    the adapters that a rank has, and which of them computes which tokens of a pass
``config_checks``  refuses adapters that change a model in any other way
``peft_files``     reads an adapter's files, by peft
"""
