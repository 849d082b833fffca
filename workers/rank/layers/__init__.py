"""What makes the layers of models faster, on CPUs and GPUs, without code for any architecture. Begin with ``packing``.

``packing``       replaces layers and modules of a loaded model
``linear``        a linear layer whose weight is laid out as its device reads it, and layers that share one product
``norm``          RMS norms in one program
``positions``     how many positions a model was made for
``modules``       attention modules and gated layers, in few products and programs
``row_programs``  the programs for tokens by themselves that a device may have
``trials``        what modules are called with, and whether a replacement gives the same
"""
