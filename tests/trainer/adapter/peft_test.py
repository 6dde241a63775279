"""Python's peft computes with our adapter files what we compute: peft_test.py <trainer_lora_export>."""

import subprocess
import sys
import tempfile

try:
    import peft
    import safetensors.torch
    import torch
except ImportError as missing:
    print(f"skipped: peft reads our adapters: {missing}; pip install torch peft safetensors")
    sys.exit(77)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(11, 6)
        self.up = torch.nn.Linear(6, 10)
        self.down = torch.nn.Linear(10, 4, bias=False)

    def forward(self, codes):
        return self.down(torch.tanh(self.up(self.tokens(codes))))


def check(export, kind):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([export, folder, kind], check=True, timeout=120)
        saved = safetensors.torch.load_file(folder + "/base.safetensors")
        expected = saved.pop("output")
        net = Net()
        net.load_state_dict(saved)
        codes = (torch.arange(22) % 11).view(2, 11)
        base = net(codes)
        adapted = peft.PeftModel.from_pretrained(net, folder + "/adapter")
        output = adapted(codes)
        assert not torch.allclose(base, expected, atol=1e-3), "the adapter changes nothing"
        assert torch.allclose(output, expected, rtol=1e-5, atol=1e-6), (kind, (output - expected).abs().max())
        merged = adapted.merge_and_unload()(codes)
        assert torch.allclose(merged, expected, rtol=1e-4, atol=1e-5), (kind, (merged - expected).abs().max())
        print(f"{kind}: peft {peft.__version__} computes the same")


for kind in ("plain", "rslora"):
    check(sys.argv[1], kind)
