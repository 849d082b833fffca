"""Every message that crosses a process boundary, and nothing else: no I/O, no state.

``openai``     what clients send us, validated
``errors``     the one encoder for errors, JSON and SSE
``handoff``    ``kv_transfer_params``: what P answers, what D is given
``handshake``  what a reader must know about a remote engine before it reads
``worker``     what a worker tells the registry about itself, and its load
``hello``      how a process proves that it knows the internal token
``token_keys`` what that and announcements are signed with
``status``     what a process tells the one that started it
``addresses``  what is accepted as one, in messages and settings
``steps``      what the scheduler tells its ranks, and what they answer
"""
