"""The schema registry: storage, compatibility, registration. Knows no sessions and no topics."""
