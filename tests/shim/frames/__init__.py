"""A test-bed for the transport, frame by frame: nothing in it knows how the transport does its work."""
