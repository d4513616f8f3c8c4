"""The `qrm` command: what it shows, asks of a running qrm, and refuses with a remedy."""

import os

# `qrm serve` may fork once all that it had of gRPC is closed. gRPC, which reads this when it is loaded, is not to revive
# that in the copy.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
