"""The part of a model card that shows how to use the bundle: in this project, timm and transformers."""

import json

from vit.bundle import CONFIG, Bundle
from vit.bundle.timm_folder import unsupported_preprocessing

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
    "single_label": 'for prediction in predictor.predict("photo.jpg", top_k={count}):\n'
                    "    print(prediction.names, prediction.probabilities)",
    "multi_label": 'for prediction in predictor.predict("photo.jpg"):\n'
                   "    print(prediction.names, prediction.probabilities)",
    "text_classes": 'for prediction in predictor.predict([{text}]):\n'
                    "    print(prediction.names, prediction.probabilities)",
    "masked_words": 'print(predictor.predict("a text with a [MASK]")[0].masks)',
    "generation": 'print(predictor.predict(["{source}"])[0].text)',
}


def usage(bundle: Bundle, repo: str | None) -> str:
    """A section with code for each library that opens the bundle."""
    config = json.loads((bundle.path / CONFIG).read_text(encoding="utf-8"))
    ours = f"hub:{repo}" if repo else "FOLDER"
    call = predict_call(bundle)
    if call is None:
        texts = bundle.model.config.kind == "text_classifier"
        data = "data=text_table data.path=reviews.csv" if texts else "data=folder data.root=photos"
        start = f"python -m vit train {data} init_from={ours}"
        return f"## Use\n\n```bash\n{start}\n```"
    parts = ["## Use", "With vit, the Python package `vitwright` (safetensors and JSON: nothing is unpickled):",
             OURS.format(ours=ours, call=call)]
    if "architecture" in config:
        other = unsupported_preprocessing(bundle.preprocessing)
        how = f"another way ({other})" if other else "as config.json states"
        parts += [f"With timm and transformers, which prepare images {how}:",
                  TIMM.format(timm=f"hf-hub:{repo}" if repo else "local-dir:FOLDER"),
                  TRANSFORMERS.format(repo=repo or "FOLDER")]
    return "\n\n".join(parts)


def predict_call(bundle: Bundle) -> str | None:
    """The code that calls the predictor; None for a model that makes no predictions."""
    kind = bundle.model.config.kind
    if kind == "encoder_decoder":
        return CALLS["generation"].format(source="a text" if bundle.preprocessing is None else "line.png")
    if kind == "masked_text":
        return CALLS["masked_words"]
    if not bundle.classes:
        return None
    if kind == "text_classifier":
        pairs = bundle.extra.get("columns") == 2
        return CALLS["text_classes"].format(text='("a text", "another text")' if pairs else '"a text"')
    if bundle.thresholds:
        return CALLS["multi_label"]
    return CALLS["single_label"].format(count=min(3, len(bundle.classes)))
