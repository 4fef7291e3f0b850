"""One file per verb: the only place that reads the command line and prints."""
