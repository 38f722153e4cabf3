"""The process: who of several operators acts, which key is worked on when, and what wakes it. Judges no resource."""
