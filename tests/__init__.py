"""One file per module; ``chaos/`` for faults. A package, so that fresh worker processes can import its datasets."""
