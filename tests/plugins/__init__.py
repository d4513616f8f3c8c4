"""Tests of the built-in allocators."""
