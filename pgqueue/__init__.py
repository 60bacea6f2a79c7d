"""A job queue that needs nothing but PostgreSQL."""

__version__ = "0.1.0"
