"""What a worker knows of its own process: how much memory it holds, what blocks it, and how it ends."""
