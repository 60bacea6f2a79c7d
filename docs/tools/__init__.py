"""What writes the generated pages and figures of docs/. A test fails when its output is stale."""
