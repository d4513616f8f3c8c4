"""Many pods come and go, and nothing of them is left."""
