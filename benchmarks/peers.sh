#!/bin/sh
# Creates a virtual environment for each peer in benchmarks/.peers, with current versions instead of their old pins.
set -eu
cd "$(dirname "$0")"
here=$(pwd)
python=${PYTHON:-python3}
torch="torch>=2.13,<2.14"

make() { # name, packages installed without their dependencies, packages
    place="$here/.peers/$1"
    [ -f "$place/ready" ] && return
    "$python" -m venv "$place"
    "$place/bin/python" -m pip install --quiet --disable-pip-version-check "$torch" numpy
    if [ -n "$2" ]; then "$place/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps $2; fi
    "$place/bin/python" -m pip install --quiet --disable-pip-version-check "$torch" $3
    touch "$place/ready"
    echo "$1 is ready"
}

make heedful "" "-e $here/.."
make huggingface "" "transformers ctranslate2 x-transformers sentencepiece"
make sockeye "sockeye" "pyyaml sacrebleu portalocker tensorboard"
make joeynmt "joeynmt" "sentencepiece subword-nmt sacrebleu pyyaml tensorboard matplotlib pandas packaging datasets six importlib-metadata"
make opennmt "OpenNMT-py" "configargparse pyyaml sacrebleu sentencepiece rapidfuzz pyonmttok ctranslate2 waitress flask tensorboard six fasttext-wheel spacy pyahocorasick"
