"""qrm begins, is restarted, replaced and ended, under kubelet's calls."""
