"""What the files of packaging/ say is true: they are read, linted, rendered and carried out."""
