"""What a worker has reserved: jobs, and ends that wait to be stored."""
