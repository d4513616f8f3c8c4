"""Tests of qrm.enforcement.isolation.io_cost."""
