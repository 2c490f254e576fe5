"""Tasks, one file or folder each: what a model is built for, counted by, and compared with.

    language/      lm, mlm
    classify/      classify-text, -image, -series
    regress/       regress-text, -image, -series
    translate.py   seq2seq
    pixels.py      pixels, super-resolution
    decide.py      decision

    scores.py      what an evaluation counts of targets
    tables.py      evaluations of rows for people

These files import no model until a task acts (`everyformer.core.tasks`).
"""

from everyformer.core.tasks import Task
from everyformer.tasks.classify import ClassifyImage, ClassifySeries, ClassifyText
from everyformer.tasks.decide import Decide
from everyformer.tasks.language import LanguageModelling, MaskedLanguageModelling
from everyformer.tasks.pixels import Pixels, SuperResolution
from everyformer.tasks.regress import RegressImage, RegressSeries, RegressText
from everyformer.tasks.translate import Translate

OWN: tuple[type[Task], ...] = (
    *(LanguageModelling, MaskedLanguageModelling, ClassifyText, ClassifyImage, Translate, Pixels),
    *(SuperResolution, ClassifySeries, RegressText, RegressImage, RegressSeries, Decide),
)
"""in the order in which they are listed"""
