"""Tests of qrm.enforcement."""
