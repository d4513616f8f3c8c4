"""The pod source: completes a request with what CRI does not carry.

What is asked is looked for in three places, each filling in what the one before does not say: the annotation
`qrm.io/resources`, the pod as kubelet has it, and the numbers of the CRI message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qrm.pods.declared import Declared, apply, in_all, main_container, merged, read_declared, read_pod, with_bandwidth
from qrm.pods.kubelet import KubeletPods
from qrm.pods.model import ResourceRequest
from qrm.units import MIN_SHARES, shares_from_millis

ANNOTATION, KUBELET = "annotation", "kubelet"
"""The values of `ResourceRequest.source` besides "cri"."""


class PodSource:
    """The places where requests are looked for; without `kubelet` one less."""

    def __init__(self, kubelet: KubeletPods | None = None) -> None:
        self._kubelet = kubelet

    async def complete(
        self, request: ResourceRequest, annotations: Mapping[str, str], *, fresh: bool = False
    ) -> ResourceRequest:
        """`request`, as read from CRI, with all that is known about what its container asks for.

        Args:
            request: What CRI told.
            annotations: The pod's, from its sandbox's configuration.
            fresh: The request has just changed, so that what kubelet said before is no answer.

        Raises:
            BadRequest: An annotation is not understood; kubelet's silence is no error.
        """
        annotated = read_declared(annotations)
        with_bandwidth(annotated, annotations)  # a bad one is refused whoever the main container is
        listed, main = await self._ask_kubelet(request, fresh=fresh)
        both = {name: merged(annotated.get(name), listed.get(name)) for name in (*annotated, *listed)}
        known = {name: declared for name, declared in both.items() if declared is not None}
        complete = with_bandwidth(known, annotations, main)
        by_kubelet = request.container in listed and request.container not in annotated
        found = complete.get(request.container)
        if found is None:
            return request
        applied = apply(request, found, KUBELET if by_kubelet else ANNOTATION)
        return replace(applied, pod_quantities=in_all(complete.values()))

    async def _ask_kubelet(self, request: ResourceRequest, *, fresh: bool) -> tuple[Mapping[str, Declared], str]:
        """What kubelet says about the containers of the request's pod, and which one is the main one."""
        pod = request.pod
        found = await self._kubelet.pod(pod.uid, pod.namespace, pod.name, fresh=fresh) if self._kubelet else None
        if found is None:
            return {}, ""
        listed = read_pod(found)
        own = listed.get(request.container)
        if own is not None and _is_newer(request, own):
            listed = {**listed, request.container: replace(own, cpu_millis=None)}
        return listed, main_container(found)


def _is_newer(request: ResourceRequest, listed: Declared) -> bool:
    """Whether CRI's CPU request is not kubelet's in another form: then the pod is being resized, and CRI's is in force.

    The pod's specification has the size that is wished for, which may have to wait; the message has the size that is.
    """
    told = shares_from_millis(request.cpu_millis)
    return told > MIN_SHARES and shares_from_millis(listed.cpu_millis or 0) != told
