"""What ``make bench`` does: it runs all benchmarks, one after the other, and makes a page of what they found.

``command`` is the command line, ``benchmarks`` the table of all, ``runs`` runs one, ``page`` writes the page and
``drawing`` its plots.
"""
