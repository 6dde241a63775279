"""A rank of a test of `python -m dlaunch`: as_program.py <the interpreter that runs dlaunch>, which runs the two ranks too."""

import os
import sys

import dlaunch

assert os.path.realpath(sys.executable) == os.path.realpath(sys.argv[1]), sys.executable
with dlaunch.init() as world:
    assert world.size == 2, world.size
