"""Adapters to other frameworks. No other part of pgqueue imports a framework."""
