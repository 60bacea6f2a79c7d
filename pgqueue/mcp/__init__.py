"""Tools for coding agents, by the Model Context Protocol: what `pgqueue mcp` serves. Needs the extra `mcp`."""
