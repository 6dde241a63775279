"""The module shows its entry alone, so that no other module can take a symbol of its Protobuf or Abseil for its own:
module_symbols.py <_comm.abi3.so>."""

import subprocess
import sys

module = sys.argv[1]
shown = subprocess.run(["nm", "-D", "--defined-only", module], capture_output=True, text=True, check=True).stdout
names = [line.split()[-1] for line in shown.splitlines()]
if names != ["PyInit__comm"]:
    sys.exit(f"{module} shows {names[:20]}")
