"""Files of clients, and batches: many requests in one file that are answered within a day."""
