"""Tests of what is given to authors of allocators."""
