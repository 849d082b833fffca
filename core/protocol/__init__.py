"""The messages between processes, and the rules for messages that both sides share. Nothing here opens a file or a
socket, or keeps state.
"""
