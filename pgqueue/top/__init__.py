"""The queue in the terminal: `pgqueue top`. Needs the extra `tui`, except for `--once`."""
