"""Several worker processes under one supervisor."""
