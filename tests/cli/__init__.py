"""Tests of `qrm.cli` and of what `systemd/` installs."""
