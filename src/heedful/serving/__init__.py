"""Models behind HTTP: an engine that batches, a server that answers, a page that shows."""
