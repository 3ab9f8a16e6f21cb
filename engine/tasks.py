"""The calls: texts are encoded, cut into windows, scored, and decoded to a result.

Every function here takes the rows of one call and answers them all; a row that fails carries
its error and the others go on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from collections.abc import Buffer
from numpy.typing import NDArray

from .batching import Work
from .config import DEFAULT_THRESHOLD, LongText, Normalize, Output, RunOptions, Shorten, Task
from .entities import LabelScheme, merge_entities
