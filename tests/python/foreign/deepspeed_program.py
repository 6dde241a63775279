"""DeepSpeed's CPU accelerator: ZeRO-1, ZeRO-2 and ZeRO-3."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.utils import logger  # noqa: E402

import result  # noqa: E402

logger.setLevel("ERROR")


def trained(stage):
    """The weights after ZeRO of this stage."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    config = {"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0, "zero_optimization": {"stage": stage},
              "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed.initialize(model=model, config=config,
                                      optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))
    data = torch.Generator().manual_seed(engine.global_rank)
    for _ in range(20):
        rows = torch.randn(8, 16, generator=data)
        engine.backward(torch.nn.functional.mse_loss(engine(rows), torch.sin(rows.sum(1, keepdim=True))))
        engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return [parameter.detach().clone() for parameter in model.parameters()]


deepspeed.init_distributed(verbose=False)
result.show([weight for stage in (1, 2, 3) for weight in trained(stage)])
deepspeed.comm.barrier()
