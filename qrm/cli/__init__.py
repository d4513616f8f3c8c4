"""The `qrm` command: what it shows, asks of a running qrm, and refuses with a remedy."""

import os

# `qrm serve` may fork once all that it had of gRPC is closed, which gRPC is not to revive in the copy. It reads this once.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
