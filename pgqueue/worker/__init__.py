"""The worker: claims jobs, runs them, reports how they ended, and keeps their leases."""

from pgqueue.worker.worker import Worker

__all__ = ["Worker"]
