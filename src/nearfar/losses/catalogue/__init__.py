"""The losses: a class each, which says what it is (`spec`), what it takes and where it comes from."""
