"""Anthropic's Messages, and their counting.

``request``       what clients may send; ``blocks`` are the contents of messages
``conversation``  from Anthropic's messages to those of a chat; ``chat`` makes the whole chat
``offered``       of which tools the model is told
``translation``   one request for an answer; ``counting`` one for the number of its tokens
``answer``        the message and its blocks; ``events`` writes them as a stream
``errors``        errors as Anthropic's clients read them
"""
