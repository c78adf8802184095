"""Small random models of other libraries, with every parameter large enough to affect the outputs."""

import torch

CLOSE = {"rtol": 0, "atol": 1e-5}
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
        "image_size": 32, "patch_size": 8}  # in the names of transformers


def scramble(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Every parameter random: fresh models have zero biases, norms of ones and nearly zero tokens."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def images(size: int | tuple[int, int] = 32, channels: int = 3, batch: int = 2) -> torch.Tensor:
    size = (size, size) if isinstance(size, int) else size
    return torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(1))


def unplaced(report) -> list[str]:
    return [row.name for row in report.rows if row.status in ("unused", "new")]
