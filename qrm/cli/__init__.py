"""The `qrm` command: what it shows, asks of a running qrm, and refuses with a remedy."""
