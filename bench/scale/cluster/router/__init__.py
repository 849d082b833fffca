"""A simulated router, in the shape of ``router/steps``, without HTTP.

``router``      the steps of a request, on its P and on its D
``places``      the request's places in queues and on workers, its lease, and its end
``decisions``   the parts of the real router
"""
