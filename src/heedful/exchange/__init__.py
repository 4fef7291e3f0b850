"""Other tools' formats, in and out. One file per format."""
