"""Former names of modules, which still can be imported and which a `_target_` in a user's config may contain."""

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {  # former name → new name
    "vit.data.archives": "vit.data.formats.zip_archives",
    "vit.data.arrays": "vit.data.image_sources.npz",
    "vit.data.audit": "vit.data.quality.audit",
    "vit.data.balancing": "vit.data.batching.balancing",
    "vit.data.batches": "vit.data.batching.batches",
    "vit.data.buckets": "vit.data.pairs.length_buckets",
    "vit.data.corpora": "vit.data.text.corpus",
    "vit.data.corpus_files": "vit.data.text.corpus_files",
    "vit.data.corrections": "vit.data.quality.corrections",
    "vit.data.counters": "vit.counters",
    "vit.data.dataset": "vit.data.images.dataset",
    "vit.data.decode": "vit.data.decoding.decode",
    "vit.data.depth": "vit.data.decoding.bit_depth",
    "vit.data.folders": "vit.data.image_sources.folders",
    "vit.data.folds": "vit.data.splits.folds",
    "vit.data.groups": "vit.data.splits.groups",
    "vit.data.hiding": "vit.data.images.masked_patches",
    "vit.data.hub_sets": "vit.data.sets.hub",
    "vit.data.image_files": "vit.data.image_sources.files",
    "vit.data.image_tables": "vit.data.pairs.image_text",
    "vit.data.images.annotation_folders": "vit.data.image_sources.annotation_folders",
    "vit.data.images.annotations": "vit.data.image_sources.coco_label_studio",
    "vit.data.images.bit_depth": "vit.data.decoding.bit_depth",
    "vit.data.images.decode": "vit.data.decoding.decode",
    "vit.data.images.file_names": "vit.data.image_sources.file_names",
    "vit.data.images.files": "vit.data.image_sources.files",
    "vit.data.images.folders": "vit.data.image_sources.folders",
    "vit.data.images.image_header": "vit.data.decoding.image_header",
    "vit.data.images.jpeg_decoders": "vit.data.decoding.jpeg_decoders",
    "vit.data.images.npz": "vit.data.image_sources.npz",
    "vit.data.images.quiet_decoding": "vit.data.decoding.quiet_decoding",
    "vit.data.images.stated_labels": "vit.data.image_sources.stated_labels",
    "vit.data.images.table_columns": "vit.data.image_sources.table_columns",
    "vit.data.images.table_labels": "vit.data.image_sources.table_labels",
    "vit.data.images.tables": "vit.data.image_sources.tables",
    "vit.data.images.unlabelled": "vit.data.image_sources.unlabelled",
    "vit.data.limits": "vit.data.system_limits",
    "vit.data.line_images": "vit.data.images.line_images",
    "vit.data.lines": "vit.data.formats.delimited",
    "vit.data.loading": "vit.data.batching.loading",
    "vit.data.masking": "vit.data.text.masked_tokens",
    "vit.data.mixup": "vit.data.augment.mixup",
    "vit.data.named": "vit.data.sets.builtin",
    "vit.data.named_lines": "vit.data.formats.lines",
    "vit.data.near_copies": "vit.data.quality.near_copies",
    "vit.data.numbers": "vit.data.sets.spelled_numbers",
    "vit.data.pair_dataset": "vit.data.pairs.dataset",
    "vit.data.parallel_text": "vit.data.pairs.parallel_text",
    "vit.data.pixels": "vit.data.augment.image_ops",
    "vit.data.policies": "vit.data.augment.policies",
    "vit.data.preprocessing": "vit.data.images.preprocessing",
    "vit.data.processes": "vit.files.processes",
    "vit.data.quality.repeats": "vit.data.quality.equal_copies",
    "vit.data.recorded": "vit.data.splits.recorded",
    "vit.data.recorded_splits": "vit.data.splits.recorded",
    "vit.data.repartition": "vit.data.splits.repartition",
    "vit.data.sample_lists": "vit.data.splits.recorded",
    "vit.data.sizing": "vit.data.augment.random_crop",
    "vit.data.split": "vit.data.splits.split",
    "vit.data.split_files": "vit.data.splits.recorded",
    "vit.data.split_names": "vit.data.splits.names",
    "vit.data.splits.files": "vit.data.splits.recorded",
    "vit.data.splitting": "vit.data.splits.splitting",
    "vit.data.spreadsheets": "vit.data.formats.spreadsheets",
    "vit.data.stories": "vit.data.sets.number_stories",
    "vit.data.strict_json": "vit.files.strict_json",
    "vit.data.strips": "vit.data.sets.digit_strips",
    "vit.data.tables": "vit.data.image_sources.tables",
    "vit.data.text_dataset": "vit.data.text.dataset",
    "vit.data.text_tables": "vit.data.text.tables",
    "vit.data.tokens": "vit.data.text.token_ids",
    "vit.data.untrusted": "vit.files.untrusted",
    "vit.data.vectors": "vit.data.formats.word_vectors",
    "vit.data.writing": "vit.data.augment.distortions",
    "vit.evaluation.bootstrap": "vit.evaluation.intervals.bootstrap",
    "vit.evaluation.deletion": "vit.evaluation.attribution.deletion",
    "vit.evaluation.embeddings": "vit.evaluation.features.embeddings",
    "vit.evaluation.grad_cam": "vit.evaluation.attribution.grad_cam",
    "vit.evaluation.integrated_gradients": "vit.evaluation.attribution.integrated_gradients",
    "vit.evaluation.label_bootstrap": "vit.evaluation.intervals.label_bootstrap",
    "vit.evaluation.label_errors": "vit.evaluation.labelling.label_errors",
    "vit.evaluation.next_to_label": "vit.evaluation.labelling.next_to_label",
    "vit.evaluation.outputs": "vit.evaluation.calibration.outputs",
    "vit.evaluation.paired": "vit.evaluation.intervals.paired",
    "vit.evaluation.probe": "vit.evaluation.features.probe",
    "vit.evaluation.relevance": "vit.evaluation.attribution.relevance",
    "vit.evaluation.reliability": "vit.evaluation.calibration.reliability",
    "vit.evaluation.selection": "vit.evaluation.labelling.selection",
    "vit.evaluation.text_bootstrap": "vit.evaluation.intervals.text_bootstrap",
    "vit.exchange.programs": "vit.exchange.onnx_and_torch_export",
    "vit.exchange.pushing": "vit.exchange.hub",
    "vit.generation.tta": "vit.generation.text_image_tta",
    "vit.inference.mirrored": "vit.inference.tta",
    "vit.nn.modes": "vit.nn.init",
    "vit.nn.projections": "vit.nn.attention",
    "vit.nn.relative": "vit.nn.position",
    "vit.report.architecture": "vit.report.figures.architecture",
    "vit.report.attention_maps": "vit.report.attention.maps",
    "vit.report.attention_page": "vit.report.attention.page",
    "vit.report.attention_report": "vit.report.attention.report",
    "vit.report.comparison": "vit.report.figures.comparison",
    "vit.report.confusion": "vit.report.figures.confusion",
    "vit.report.curves": "vit.report.figures.curves",
    "vit.report.embedded": "vit.report.pages.embedded",
    "vit.report.heat": "vit.report.attention.heat",
    "vit.report.html_parts": "vit.report.pages.html_parts",
    "vit.report.label_errors": "vit.report.pages.label_errors",
    "vit.report.misclassified": "vit.report.figures.misclassified",
    "vit.report.model_report": "vit.report.pages.model_report",
    "vit.report.next_to_label": "vit.report.pages.next_to_label",
    "vit.report.plain_page": "vit.report.pages.page",
    "vit.report.positions": "vit.report.attention.positions",
    "vit.report.reconstructions": "vit.report.figures.reconstructions",
    "vit.report.reliability": "vit.report.figures.reliability",
    "vit.report.runs_table": "vit.report.pages.runs_table",
    "vit.weights.exporting": "vit.weights.export_checks",
}


class MovedModules:
    """Imports a module by its former name: the same module object, and a warning with the new name.

    A finder and loader as those of `importlib.abc`, whose import takes longer than that of vit.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        """None: a placeholder, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        former = module.__name__
        logging.getLogger("vit").warning("%s is now %s", former, MOVED[former])
        sys.modules[former] = importlib.import_module(MOVED[former])
