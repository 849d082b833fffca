"""What records the work of a step, and does it again.

``cuda_recorder``  on a GPU, as CUDA graphs
``cpu_recorder``   on a CPU, as a list of calls: ``tape`` has them, and ``straight_line`` makes one function of it
"""
