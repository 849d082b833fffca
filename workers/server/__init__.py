"""The worker's HTTP server: the OpenAI endpoints on the public port, and the internal port. Main process.

Begin with ``serving``, which answers one request.

``endpoint``         the two hot endpoints; ``http`` is their ASGI, ``access`` checks the internal token
``job``              from a body to a job for the engine: tokenizes the prompt; ``sampling``, ``token_ids``
``request_leg``      whether it is P's part, D's part or all of a request; ``transfer_params`` checks the hand-off
``serving``          runs a job on the engine and answers it; ``engine_errors`` are the engine's errors as HTTP errors
``internal``         abort, drain, state; ``hello`` proves the internal token; ``pages`` are models, health and metrics
``identity``         what answers say about this worker; ``presence`` announces it
``ports``            what the server needs of an engine; ``metrics``, ``error_pages``
"""
