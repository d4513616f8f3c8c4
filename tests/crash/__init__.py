"""kill -9 of the service at every step, lost and damaged ledgers, and what ran before qrm came."""
