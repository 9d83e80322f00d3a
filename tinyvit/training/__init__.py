"""Training: the loop, metrics, checkpoints, history. It knows no model and no task."""

from .checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from .history import History
from .hooks import Hook
from .interrupt import Interrupted
from .loop import Run, TrainingError, fit
from .metrics import classification, evaluate
from .progress import Progress

__all__ = ["CheckpointError", "History", "Hook", "Interrupted", "Progress", "Run", "TrainingError", "classification",
           "evaluate", "fit", "load_checkpoint", "save_checkpoint"]
