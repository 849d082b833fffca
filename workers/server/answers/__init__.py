"""From a request's body to its answer. Begin with ``serving``.

``job``          from a body to a job for the engine; ``prompts`` tokenizes, ``sampling`` has the sampling parameters
``request_leg``  whether this is P's part, D's part or all of a request; ``transfer_params`` checks the hand-off
``serving``      /v1/chat/completions and /v1/completions: runs a job on the engine and answers it
``engine_errors``  turns the engine's errors into HTTP errors
``tokenizing``   /tokenize and /detokenize
``turns``        long work, in turns with other tasks of the event loop
``token_ids``    the comment lines that tell the router the ids of the tokens
"""
