"""A simulated router, in the shape of ``router/steps``, without HTTP.

``router``      one router, which is all of these, each on top of the next one:
``first_leg``   a request on its P
``second_leg``  a request on its D
``places``      the request's places in queues and on workers, its lease, and its end
``decisions``   the parts of the real router
"""
