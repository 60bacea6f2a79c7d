"""Measured claims: each against a limit or a baseline of the same run, for machines differ and are never quiet.

    python -m benchmarks                      # all of them
    python -m benchmarks reserve_flat --json

One file is one benchmark; `harness` has what they share, `probe` the processes that they measure.
"""
