"""What is asked of a simulated cluster.

``job``        one request; ``generated`` makes them, ``trace`` reads them from a file of recorded ones
"""
