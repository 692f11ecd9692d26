"""What two processes must agree on, byte for byte. Imports nothing else of ours."""
