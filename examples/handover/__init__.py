"""Hands jobs over to another queue, each in one transaction."""
