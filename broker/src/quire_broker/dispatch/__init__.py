"""Delivery of entries to consumers: permits, redelivery and the four subscription types."""
