"""The schema: the files that define it, and how it is migrated."""
