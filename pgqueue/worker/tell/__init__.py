"""Reports about jobs: counts, hooks, and the log."""
