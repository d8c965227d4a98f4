"""One file per module. A package, so that fresh worker processes can import the datasets in it."""
