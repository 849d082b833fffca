"""How families of models write reasoning and tool calls, as response templates of ``transformers``; one family a file.

A template says where each part of a message begins and ends. These have the parts ``content``, ``reasoning``, ``name``
and ``arguments`` (a call whose arguments are JSON, passed on as they come) or both in one, ``call``, and ``calls``
(calls that have to be read to their end first). Where a part begins and ends is all of the library's: see
``transformers``' documentation of response parsing.
"""
