"""Accelerate's own test scripts, as its package ships them."""

import os

os.environ["ACCELERATE_USE_CPU"] = "true"
import torch  # noqa: E402
from accelerate.test_utils.scripts import test_ops, test_script, test_sync  # noqa: E402

import result  # noqa: E402

for script in (test_ops, test_sync, test_script):
    script.main()
result.show([torch.ones(1)])
