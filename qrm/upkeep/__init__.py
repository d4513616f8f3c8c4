"""Keeps ledger, runtime and kernel in agreement: adoption, lists, growth, drift."""
