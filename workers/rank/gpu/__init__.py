"""Programs that Triton compiles for GPUs, beside those of attention (``in_place``).

``support``   whether they can be compiled here
``programs``  norms, rotations, gates, writing to the paged cache, and copies of pieces, in Triton's subset of Python
``launches``  what starts them

And what lets ranks on one GPU read each other's blocks:

``cuda_ipc``  maps memory of another process; ``mapped_memory`` copies from it, ``agent`` chooses it
"""
