"""What is asked: pods, their QoS and their containers' requests."""
