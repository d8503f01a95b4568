"""Programs that the project uses on itself. Nothing in here is part of the package."""
