"""The process of a worker: its memory, what blocks its event loop, and how it ends."""
