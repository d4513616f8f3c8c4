"""Tests of qrm.ledger."""
