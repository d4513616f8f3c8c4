"""Tests of the allocator to learn from, and of what plugins/README.md says."""
