"""Tests of qrm.service."""
