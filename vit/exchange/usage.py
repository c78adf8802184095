"""How a bundle is used, in a card's words: in this program, in timm, in transformers."""

import json

from vit.bundle import CONFIG, Bundle

OURS = """```python
import vit

predictor = vit.load("{ours}")
{call}
```"""
TIMM = """```python
import timm

model = timm.create_model("{timm}", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
```"""
TRANSFORMERS = """```python
from transformers import pipeline

print(pipeline("image-classification", model="{repo}")("photo.jpg"))
```"""
CALLS = {
    "one": 'for answer in predictor.predict("photo.jpg", top_k={count}):\n'
           "    print(answer.names, answer.probabilities)",
    "several": 'for answer in predictor.predict("photo.jpg"):\n    print(answer.names, answer.probabilities)',
    "texts": 'for answer in predictor.predict(["a text"]):\n    print(answer.names, answer.probabilities)',
    "writing": 'print(predictor.predict(["{source}"])[0].text)',
}


def usage(bundle: Bundle, repo: str | None) -> str:
    """The ways that can open it, each as lines to copy."""
    config = json.loads((bundle.path / CONFIG).read_text(encoding="utf-8"))
    ours = f"hub:{repo}" if repo else "FOLDER"
    how = call(bundle)
    if how is None:
        start = f"python -m vit train data=folder data.root=photos init_from={ours}"
        return f"## Use\n\n```bash\n{start}\n```"
    parts = ["## Use", "With vit, the Python package `vitwright` (safetensors and JSON: nothing is unpickled):",
             OURS.format(ours=ours, call=how)]
    if "architecture" in config:
        parts += ["With timm and transformers, which prepare images as config.json says:",
                  TIMM.format(timm=f"hf-hub:{repo}" if repo else "local-dir:FOLDER"),
                  TRANSFORMERS.format(repo=repo or "FOLDER")]
    return "\n\n".join(parts)


def call(bundle: Bundle) -> str | None:
    """The line that asks the model; None where it has no answers."""
    kind = bundle.model.config.kind
    if kind == "encoder_decoder":
        return CALLS["writing"].format(source="a text" if bundle.preprocessing is None else "line.png")
    if kind == "text_classifier":
        return CALLS["texts"]
    if not bundle.classes:
        return None
    return CALLS["several"] if bundle.thresholds else CALLS["one"].format(count=min(3, len(bundle.classes)))
