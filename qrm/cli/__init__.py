"""The `qrm` command: what it shows, asks of a running qrm, and refuses with a remedy."""

import os

# `qrm serve` may fork when all that it had of gRPC is closed, which is not to be revived in the copy. gRPC reads this
# when it is loaded.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
