"""One request: what was asked, where it is, what it holds and what was tried. It knows no step.

``exchange``        the record; ``releaser`` takes back what it holds
``states``          where a request can be, as a table
``client_request``  what its client asked; ``bodies`` are what workers are sent, ``reply`` is what the client is sent
``sent_tokens``     the names of the tokens that the client has been sent
``attempts``        what was tried, and what is next after a failure; ``failure_table`` has the rows
``active``          all that are not over; ``ended`` are the last ones that are
``facts``           what metrics, log, traces, admin REST and dashboard are told; ``snapshot`` takes it from the record
``client_id``       what a client calls its own request
"""
