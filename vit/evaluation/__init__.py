"""Numbers for answers: classes against labels, texts against references; the same for a run's test and `vit evaluate`.
"""

from vit.evaluation.classes import ClassScore, Evaluation, evaluate, matched_split
from vit.evaluation.texts import bleu_signature, text_metrics

__all__ = ["ClassScore", "Evaluation", "bleu_signature", "evaluate", "matched_split", "text_metrics"]
