"""One request: what was asked, its state, what it holds and what was tried. Nothing here depends on the steps.

``exchange``        the record; ``held`` is what it holds
``states``          where a request can be, as a table, and where one is
``validated``       from a body to ``client_request``
``endpoints``       all but chats and completions; ``splits``: what a P and a D of vLLM cannot share
``client_request``  what the client asked for; ``bodies`` is sent to workers, ``reply`` to the client
``prompt_text``     what placement knows of the prompt in a body
``sent_tokens``     the ids of the tokens that the client has been sent
``attempts``        what was tried, and what is next after a failure; ``failure_table`` has the rows
``choices``         a request for several answers: its record, and one answer of them
``active``          all live requests; ``ended`` has the ones that ended last
``facts``           what metrics, log and traces get. ``view`` is what is shown
"""
