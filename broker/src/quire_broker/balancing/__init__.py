"""Load balancing of brokers: reports, the leader, assignment of bundles, moves and splits. `plan` decides."""
