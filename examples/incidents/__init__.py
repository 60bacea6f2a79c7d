"""Fourteen incidents, each in a database for practice: it happens, the first screen names it, printed commands end it.

    python -m examples.incidents                                    lists them
    python -m examples.incidents slots --dsn postgresql://localhost/practice
    python -m examples.incidents slots --dsn ... --cure             says how long it took to find and to end it
    python -m examples.incidents all --dsn ...                      says so of each, in databases that it makes

Never in a database that is in use: it fills queues, makes old rows older, and takes every slot.
"""
