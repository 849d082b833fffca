"""Programs that Triton compiles for GPUs, beside those of attention (``in_place``).

``support``   whether they can be compiled here
``programs``  norms, rotations, gates, and writing to the paged cache, in Triton's subset of Python
``launches``  what starts them
"""
