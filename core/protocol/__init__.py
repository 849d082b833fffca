"""Every message that crosses a process boundary, and nothing else: no I/O, no state.

``openai``     what clients send us, validated
``errors``     the one encoder for errors, JSON and SSE
``handoff``    ``kv_transfer_params``: what P answers, what D is given
``handshake``  what a reader must know about a remote engine before it reads
``worker``     what a worker tells the registry about itself, and its load
``hello``      how a process proves that it knows the internal token
``token_keys`` what that and announcements are signed with
``status``     what a process tells the one that started it
``settings``   what every process can be told (``addresses`` checks some of it)
``log``        what a line of any process's log looks like
``interpreter`` how one of our processes starts another
``steps``      what the scheduler tells its ranks, and what they answer
"""
