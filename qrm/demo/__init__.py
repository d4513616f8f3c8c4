"""Building blocks that stand in for a node: kubelet's side of the CRI, a containerd of one's own, and a fake runtime.

The demo, the tests and the scripts of the guest are made of these.
"""
