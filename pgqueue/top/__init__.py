"""The queue in the terminal: `pgqueue top`. Needs the extra `tui`, save for `--once`."""
