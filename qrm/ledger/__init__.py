"""The durable record of what every container holds."""
