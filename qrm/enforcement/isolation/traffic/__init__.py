"""Pods' traffic: who may send and receive how much, and who comes first, in both directions; through tc.

Each direction has one ifb of ours with one HTB tree: the node, its classes, their pods. On the host's end of a pod's
veth two filters give a packet its pod's HTB class and redirect it to the ifb, which puts it back where it came from:

    pod ─▶ veth, clsact ingress ─▶ qrm-egress  (HTB) ─▶ the host's stack, as if it had just come in
    pod ◀─ veth, clsact egress  ◀─ qrm-ingress (HTB) ◀─ the host's stack

Nothing is in the pod's namespace, so the pod cannot change it, and the veth's root qdisc stays whoever's it is.
"""

from qrm.enforcement.isolation.traffic.dimension import Traffic

__all__ = ["Traffic"]
