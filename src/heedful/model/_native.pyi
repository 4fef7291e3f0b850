# Addresses and sizes; native.c says of what.
def product(
    weight: int, scales: int, bias: int, depth: int, columns: int, x: int, y: int, rows: int, add: bool, relu: bool,
    threads: int, rounded: int, /,
) -> None: ...  # fmt: skip
def encode(*style_layers_x_scratch_hidden_sentences_source: float) -> None: ...
def step(*style_layers_x_scratch_hidden_origin_rows_sentences_source_slots_room_length: float) -> None: ...
def lay(
    rows: int, keys: int, values: int, stride: int, sentences: int, source: int, heads: int, head: int, room: int, /
) -> None: ...
def embed(
    tokens: int, table: int, scales: int, factor: float, places: int, period: int, x: int, rows: int, width: int,
    size: int, /,
) -> None: ...  # fmt: skip
def norm(
    weight: int, bias: int, rms: bool, eps: float, x: int, rows: int, width: int, threads: int, /
) -> None: ...
def log_softmax(x: int, rows: int, size: int, threads: int, /) -> None: ...
def largest(
    x: int, offsets: int, rows: int, beams: int, size: int, count: int, values: int, places: int, threads: int, /
) -> None: ...
