"""The worker as the database knows it: its name, its row, the commands of operators."""
