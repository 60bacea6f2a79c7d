"""The jobs that a worker has reserved, and ends that wait to be stored."""
