"""The rank processes of one engine, as the main process handles them. No torch. Begin with ``group``.

All ranks are started together, get the same messages, and are ended together.

``group``          all ranks; ``first_failure`` finds out which rank's end caused the others
``link``           one rank process: messages, exit, stop; ``launch`` starts it
``rank_facade``    one interface to all ranks for the engine; ``rank_merge`` merges the ranks' answers into one
"""
