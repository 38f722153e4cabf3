"""Requests of clients: adds, reads, fences, forces, explicit LACs and long polls."""
