"""OpenAI's Responses, without a store of them.

``request``       what clients may send; ``items`` are those of a conversation
``tools``         those that the model is offered, as functions; ``toolbox`` has them by name, and those that the client
                  chooses; ``calls`` makes items of their calls
``conversation``  from items to the messages of a chat; ``translation`` makes the whole chat
``answer``        the response and its items; ``events`` writes them as a stream
"""
