"""A small shop: orders, payments, receipts. Run it with `pgqueue demo`."""
