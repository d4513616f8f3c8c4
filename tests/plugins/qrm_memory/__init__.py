"""Tests of the memory allocator."""
