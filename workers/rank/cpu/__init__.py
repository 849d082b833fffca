"""Programs that Numba compiles for CPUs when a model is loaded; no C compiler is needed.

``programs``  attention, norms, rotations and gates, in Numba's subset of Python
``support``   whether they can be compiled here, and how they are called; those of attention ``in_place`` calls
"""
