"""The worker as the database knows it: its name, its row, its orders."""
