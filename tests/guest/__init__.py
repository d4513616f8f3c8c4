"""Tests that run in a guest of their own kernel, and that guest."""
