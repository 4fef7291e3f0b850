#!/bin/sh
# AdapterHub's library, for tests/parity/test_bottleneck.py, in a folder of its own, with the transformers it pins:
#
#     sh tests/parity/adapter_oracles.sh /some/folder
#     HEEDFUL_ADAPTER_ORACLES=/some/folder pytest tests/parity/test_bottleneck.py
#
# Without their other dependencies: torch and the rest are there. The tests import them in a process of its own.
set -e
folder=${1:?usage: adapter_oracles.sh FOLDER}
python -m pip install --quiet --no-deps --target "$folder" \
    adapters==1.3.0 transformers==4.57.6 huggingface-hub==0.36.0 tokenizers==0.22.1
