"""Anthropic's Messages, and their counting.

``request``       what clients may send; ``blocks`` are the contents of messages
``chat``          from Anthropic's messages and tools to the chat
``translation``   one request for an answer, or for the number of its tokens
``answer``        the message and its blocks, whole or as a stream, and errors
"""
