"""Import and export of other tools' formats. One file per format."""
