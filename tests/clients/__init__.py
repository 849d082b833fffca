"""The clients that people use, in their newest versions, each in an environment of its own: ``make test-clients``.

``__main__``      starts a Baton, has each client make its calls, and shows or writes the table
``environments``  the clients, and how their environments are made
``calls/``        one script a client; each prints a line of JSON for every call. A file of JSON beside a script are the
                  rules of a ``scripted_model`` of its own, for an agent that the demo model is too small for
"""
