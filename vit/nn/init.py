"""First values of the weights, as DeiT and timm have them (arXiv 2012.12877)."""

from torch import nn

from vit.nn.embed import LinearPatches, PatchEmbed, TokenEmbed
from vit.nn.pool import AttentionPool


def init_weights(model: nn.Module) -> None:
    """Set every weight of a model of this house: normal of std 0.02 cut at 2, biases zero.

    The patch projection has the variance of its fan-in, as in the JAX original, because a patch may have 48 pixels or 768;
    class token and registers start close to zero. Scales, norms and the convolutions of a stem keep their own beginnings.
    """
    for module in model.modules():
        if isinstance(module, LinearPatches):
            fan_in = module.weight[0].numel()
            nn.init.trunc_normal_(module.weight, std=fan_in**-0.5, a=-2 * fan_in**-0.5, b=2 * fan_in**-0.5)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, PatchEmbed):
            for token in (module.cls_token, module.reg_token):
                if token is not None:
                    nn.init.normal_(token, std=1e-6)
        elif isinstance(module, TokenEmbed):
            nn.init.normal_(module.token.weight, std=module.token.embedding_dim**-0.5)
        elif isinstance(module, AttentionPool):
            nn.init.trunc_normal_(module.latent, std=module.latent.shape[-1] ** -0.5)
        if isinstance(getattr(module, "pos_embed", None), nn.Parameter):
            nn.init.trunc_normal_(module.pos_embed, std=0.02)
