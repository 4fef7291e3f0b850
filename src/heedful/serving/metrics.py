"""The server's Prometheus metrics."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from heedful.serving.engine import Watch

LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "heedful_requests_total", "Requests answered", ["path", "status"], registry=self.registry
        )
        self.latency = Histogram(
            "heedful_request_seconds", "Time to answer a request", ["path"], buckets=LATENCY, registry=self.registry
        )
        self.in_flight = Gauge("heedful_requests_in_flight", "Requests being answered", registry=self.registry)
        self.queue = Gauge("heedful_queue_length", "Sentences waiting in the queue", registry=self.registry)
        self.batches = Histogram(
            "heedful_batch_sentences",
            "Sentences per batch",
            ["model"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self.tokens = Counter("heedful_tokens_total", "Target tokens generated", ["model"], registry=self.registry)
        self.busy = Counter("heedful_busy_seconds_total", "Time spent translating", ["model"], registry=self.registry)

    def watch(self, model: str) -> Watch:
        def batch(jobs: int, tokens: int, seconds: float) -> None:
            self.batches.labels(model).observe(jobs)
            self.tokens.labels(model).inc(tokens)
            self.busy.labels(model).inc(seconds)

        return Watch(batch=batch)

    def follow_queue(self, length: Callable[[], int]) -> None:
        self.queue.set_function(length)

    def text(self) -> bytes:
        return generate_latest(self.registry)
