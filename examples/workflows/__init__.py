"""An order that can be undone, an import that reports once, a nightly run."""
