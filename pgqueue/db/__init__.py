"""The statements of the package, over every driver that an application may use."""
