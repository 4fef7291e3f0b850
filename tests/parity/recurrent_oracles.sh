#!/bin/sh
# JoeyNMT's recurrent and Eole's convolutional networks, for tests/parity/test_recurrent.py, in a folder of their own:
#
#     sh tests/parity/recurrent_oracles.sh /some/folder
#     HEEDFUL_RECURRENT_ORACLES=/some/folder pytest tests/parity/test_recurrent.py
#
# Without their dependencies: torch is there, and the tests put stand-ins in the place of what else they import.
set -e
folder=${1:?usage: recurrent_oracles.sh FOLDER}
python -m pip install --quiet --no-deps --target "$folder" joeynmt==2.3.0 eole==0.6.4
