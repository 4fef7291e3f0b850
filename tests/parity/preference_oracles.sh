#!/bin/sh
# TRL's and torchtune's functions of PPO, for tests/parity/test_preferences.py, in a folder of their own:
#
#     sh tests/parity/preference_oracles.sh /some/folder
#     HEEDFUL_PREFERENCE_ORACLES=/some/folder pytest tests/parity/test_preferences.py
#
# Without their dependencies: the tests read the files that hold the functions, with stand-ins for the rest. Later
# versions have no PPO.
set -e
folder=${1:?usage: preference_oracles.sh FOLDER}
python -m pip install --quiet --no-deps --target "$folder" trl==0.11.4 torchtune==0.6.1
