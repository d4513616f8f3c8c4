"""HTTP/2 as far as a proxy for gRPC needs it: frames in, frames out (RFC 9113), and single streams held on the way."""
