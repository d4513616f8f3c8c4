"""Tests of what is read from pods: annotations, identities and CRI messages."""
