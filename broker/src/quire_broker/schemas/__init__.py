"""The schema registry: what is stored, what is compatible, who may register. Sees no session and no topic."""
