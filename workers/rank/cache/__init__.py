"""The paged KV cache, and attention over it. Begin with ``kv_cache``.

``kv_cache``    the tensor of all blocks
``batch``       where the tokens of one forward pass are in the cache
``attention``   writes keys and values of a pass into the cache, and computes the attention over it
"""
