"""How fast qrm is on this machine: `python -m tests.bench`."""
