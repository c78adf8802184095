"""Numbers for answers: classes against labels, texts against references; the same for a run's test and `vit evaluate`.
"""

from vit.evaluation.classes import ClassScore, Evaluation, evaluate, matched_split
from vit.evaluation.label_sets import LabelScore, LabelSetEvaluation, best_thresholds, evaluate_label_sets
from vit.evaluation.texts import bleu_signature, text_metrics

__all__ = [
    "ClassScore", "Evaluation", "LabelScore", "LabelSetEvaluation", "best_thresholds", "bleu_signature", "evaluate",
    "evaluate_label_sets", "matched_split", "text_metrics",
]
