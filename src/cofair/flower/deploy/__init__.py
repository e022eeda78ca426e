"""Certificates, keys, folders and processes of a real federation."""
