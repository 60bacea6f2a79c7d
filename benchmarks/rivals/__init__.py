"""Ours and others', on one machine: `make rivals`."""
