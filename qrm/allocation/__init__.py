"""From a request to a durable, enforced placement: the allocators, the plan and the transaction."""
