"""Serving models over HTTP: a batching engine, the APIs, and a web page."""
