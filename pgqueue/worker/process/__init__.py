"""What its own worker knows process: how much memory it holds, what blocks it, and how it ends."""
