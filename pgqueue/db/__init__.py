"""What the package asks of the database, over every driver that an application may use."""
