"""Metrics over whole splits, shared by the test after training and `vit evaluate`."""

from vit.evaluation.classification import ClassScore, Evaluation, evaluate, matched_split
from vit.evaluation.matched_classes import among_present, named_classes
from vit.evaluation.multi_label import LabelScore, MultiLabelEvaluation, best_thresholds, evaluate_multi_label
from vit.evaluation.real_labels import read_real_labels, with_real_accuracy
from vit.evaluation.text_metrics import bleu_signature, text_metrics

LabelSetEvaluation, evaluate_label_sets = MultiLabelEvaluation, evaluate_multi_label  # former names

__all__ = [
    "ClassScore", "Evaluation", "LabelScore", "LabelSetEvaluation", "MultiLabelEvaluation", "among_present",
    "best_thresholds", "bleu_signature", "evaluate", "evaluate_label_sets", "evaluate_multi_label", "matched_split",
    "named_classes", "read_real_labels", "text_metrics", "with_real_accuracy",
]
