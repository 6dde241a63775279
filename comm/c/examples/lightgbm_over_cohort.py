"""Runs a LightGBM program unchanged, over Cohort instead of LightGBM's sockets:

    LIGHTGBM_NETWORK=./liblightgbm_network.so dlaunch -n 4 lightgbm_over_cohort.py train.py

The library is lightgbm_network.c, compiled. The program sets `machines` or `num_machines` and a `tree_learner`, as it does
for sockets. Cohort ignores addresses and ports. The order of ranks is dlaunch's.
"""

import atexit
import ctypes
import os
import runpy
import sys

import lightgbm

network = ctypes.CDLL(os.environ.get("LIGHTGBM_NETWORK", "liblightgbm_network.so"))
booster = ctypes.CDLL(lightgbm.basic._LIB._name)


def set_network(self, *_addresses, **_ports):
    """In the place of Booster.set_network."""
    if network.lightgbm_network_begin(booster.LGBM_NetworkInitWithFunctions) != 0:
        raise lightgbm.basic.LightGBMError("Cohort cannot serve LightGBM's network")
    self._network = True
    return self


def leave():
    booster.LGBM_NetworkFree()
    network.lightgbm_network_end()


lightgbm.Booster.set_network = set_network
atexit.register(leave)
if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
