"""The engine beside vLLM on CPUs: the same models, the same requests, no router. The models are ``bench.models.sized``.

``setups``    what is compared: model, dtype, threads; and which of these are measured by default
``servers``   Baton's worker and vLLM's server, one of which runs at a time
``work``      what is asked: a long prompt, 1, 8 or 32 streams, a trace of arrivals
``rounds``    interleaved runs of one setup
``result``    tables, and how many cells reach the goal
``contexts``  the time of a decode step against the length of its context
"""
