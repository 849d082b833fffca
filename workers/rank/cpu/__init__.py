"""What makes models faster on CPUs, without code for any architecture. Begin with ``packing``.

``packing``  replaces layers of a loaded model
``linear``   a linear layer whose weight is laid out as oneDNN reads it, and layers that share one product
``norm``     RMS norms in few operations
"""
