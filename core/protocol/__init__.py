"""What processes say to each other, and the rules for it that both sides share. Nothing here opens a file or a socket,
and nothing keeps state.

Messages:

``openai``     what clients send us, validated; ``messages`` are those of a chat, ``objects`` bounds and refuses fields
``errors``     the one encoder for errors, JSON and SSE
``handoff``    ``kv_transfer_params``: what P answers, what D is given
``handshake``  what a reader must know about a remote engine before it reads
``steps``      what the scheduler tells its ranks, and what they answer
``worker``     what a worker tells the registry about itself, and its load
``router``     what a router tells the others about itself, and what the id of a request says
``hello``      how a process proves that it knows the internal token
``status``     what a process tells the one that started it
``scale``      what ``baton scale`` and ``baton up`` tell each other

Rules:

``json_body``  from the bytes of a body to an object, counted before it is built
``id_syntax``  which characters ids from other processes have
``ids``        how people read and type ids
``addresses``  what is accepted as one, in messages and settings
``excerpts``   what is repeated of what somebody sent
``token_keys`` what ``hello`` and announcements are signed with
"""
