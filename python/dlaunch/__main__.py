"""`python -m dlaunch` is the program dlaunch; its ranks run this interpreter."""

from dlaunch.programs import dlaunch

dlaunch()
