"""Runs jobs: their handlers, in tasks and threads."""
