"""Who gets which entry: permits, redelivery and the four subscription types."""
