"""Classes of a classifier, as the configs of `transformers` name them."""

from __future__ import annotations

from typing import Any

from everyformer.core.tasks import TASKS
from everyformer.models.config import ModelConfig


def label_count(config: dict[str, Any]) -> int:
    """How many classes their config has."""
    return len(config.get("id2label") or {}) or int(config.get("num_labels", 2))


def described_labels(config: ModelConfig) -> dict[str, Any]:
    """Names for as many classes as a classifier has; nothing for other tasks."""
    if not TASKS[config.task].classifies:
        return {}
    names = {str(n): f"LABEL_{n}" for n in range(config.classes)}
    return {"id2label": names, "label2id": {name: int(n) for n, name in names.items()}}
