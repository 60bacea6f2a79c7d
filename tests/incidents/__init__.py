"""Incidents, each made to happen and ended by what is printed."""
