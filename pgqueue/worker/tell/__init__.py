"""What a worker tells of its jobs: counts, hooks, and the log."""
