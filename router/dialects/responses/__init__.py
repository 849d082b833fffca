"""OpenAI's Responses, without a store of them.

``request``       what clients may send; ``items`` has the items of a conversation
``tools``         the tools that the model is offered, as functions; ``toolbox`` has them by name, and knows which the
                  client chooses; ``calls`` makes items of their calls
``conversation``  from items to the messages of a chat; ``translation`` makes the whole chat
``answer``        the response and its items; ``events`` writes them as a stream
"""
