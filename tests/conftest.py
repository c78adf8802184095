import os

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is imported: bits are compared, and workers share two cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may need the network

import torch

torch.set_num_threads(1)
