"""A simulated router, in the shape of ``router/steps``, without HTTP.

``router``      one router: what others ask of it, and the steps put together
``first_leg``   a request from its P, ``second_leg`` on its D, and ``failures`` what follows when one of them fails
``places``      the request's places in queues and on workers, its lease, and its end
``parts``       what all steps work with: ``decisions``, the parts of the real router, and the ``cpu``, among others
"""
