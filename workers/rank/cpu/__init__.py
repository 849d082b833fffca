"""What makes models faster on CPUs, without code for any architecture. Begin with ``packing``.

``packing``  replaces layers and modules of a loaded model
``linear``   a linear layer whose weight is laid out as oneDNN reads it, and layers that share one product
``norm``     RMS norms in one native program
``gated``    gated layers: two products, and one program between them
``rotary``   attention modules: one product, a rotation in place, the paged attention, one product
``trials``   what modules are called with, and whether a replacement gives the same
"""
