"""The process: the lease, the work queue, and the events that enqueue resources. Decides nothing about resources."""
