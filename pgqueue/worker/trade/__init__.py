"""Trades ends of jobs for new ones: when to claim, when to report, how long leases hold."""
