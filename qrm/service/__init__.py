"""Builds every part, owns the one event loop and the list of its tasks."""
