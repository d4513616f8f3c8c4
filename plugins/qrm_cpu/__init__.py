"""The built-in CPU allocator."""
