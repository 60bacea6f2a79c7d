"""The connections of a worker, which reconnect by themselves."""
