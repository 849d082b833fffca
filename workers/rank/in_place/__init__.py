"""Attention that reads the blocks of the cache where they are: no decode step copies keys and values together.

``attention``      the attention of a forward pass
``rows``           what a kernel is asked: rows of equal or any lengths, and where their blocks are
``triton_kernel``  the kernel of GPUs, whose programs are in ``programs``; ``splits`` says how many share a row
``cpu_kernel``     the kernel of CPUs, whose programs are in ``workers.rank.cpu``
``choice``         which attention a rank uses
"""
