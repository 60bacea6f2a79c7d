"""pgqueue and Django."""
