"""What clients of OpenAI's API may send.

``json_body``  from the bytes of a body to an object, counted before it is built
``requests``   the requests, validated; ``messages`` are those of a chat, ``templates`` has what chat templates read,
               ``hints`` change no token, ``objects``
               bounds and refuses fields, ``structured`` has the form that an answer must have
``plain``      decodes the requests that have no special field, fast; their fields are those of ``requests``
``choices``    what is asked for more than one answer of
``tokenize``   the bodies of /tokenize and /detokenize
``passed_on``  the same of requests that only a vLLM server judges: the few fields that a router acts on
"""
