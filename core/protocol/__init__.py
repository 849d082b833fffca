"""The messages between processes, and the rules for messages that both sides share. Nothing here opens a file or a
socket, or keeps state.

Messages:

``openai``     what clients send: from bytes to a validated request
``errors``     the one encoder for errors, JSON and SSE
``handoff``    ``kv_transfer_params``: what P answers, what D is given
``handshake``  what D must know about the ranks of P before it reads
``steps``      between the scheduler and its ranks
``worker``     what a worker announces in the registry about itself, and its load
``vllm_server``  what a vLLM server with Baton's connector announces there
``router``     what a router announces in the registry about itself; the form of request ids
``hello``      how a process proves that it knows the internal token
``status``     what a process reports to its parent process
``scale``      between ``baton scale`` and ``baton up``

Rules:

``id_syntax``  which characters ids from other processes have
``ids``        how ids are shown to people, and found by their beginning
``addresses``  which addresses are valid in messages and settings
``excerpts``   how much of a client's text errors and log lines repeat
``vllm_keys``  which vLLM server has which API key
``token_keys`` keys made of the internal token, which sign hellos and announcements
"""
