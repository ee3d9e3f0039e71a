"""A driver for Kubernetes' dynamic resource allocation: the memory of a node's GPUs, as lgpud gives it away."""
