"""One file per command: the only place that parses the command line and prints."""
